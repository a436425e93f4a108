// Memory channels: a kernel reads and writes the peer's memory itself. Many threads share a copy.
#ifndef MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_
#define MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_

#include <mscclpp/copy_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/packet_device.hpp>
#include <mscclpp/semaphore_device.hpp>

namespace mscclpp {

// Signals only.
struct BaseMemoryChannelDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Signals, ordered after all writes of this thread, and those of others before a barrier that it passed.
  MSCCLPP_DEVICE_INLINE void signal() { semaphore_.signal(); }

  // Signals, unordered with other writes.
  MSCCLPP_DEVICE_INLINE void relaxedSignal() { semaphore_.relaxedSignal(); }

  // Whether one more signal has arrived; if so, it is consumed.
  MSCCLPP_DEVICE_INLINE bool poll() { return semaphore_.poll(); }

  // Waits for one more signal. Returns 0 or the error.
  MSCCLPP_DEVICE_INLINE int wait(int64_t maxSpinCount = -1) { return semaphore_.wait(maxSpinCount); }
#endif

  MemoryDevice2DeviceSemaphoreDeviceHandle semaphore_;
};
static_assert(sizeof(BaseMemoryChannelDeviceHandle) == 40, "the host lays out this handle");

// The destination is the peer's memory, the source is this rank's; packets of the peer arrive in this rank's buffer.
struct MemoryChannelDeviceHandle : public BaseMemoryChannelDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Reads or writes an element of the peer's memory.
  template <typename T>
  MSCCLPP_DEVICE_INLINE T read(uint64_t index) const {
    return static_cast<const T*>(dst_)[index];
  }
  template <typename T>
  MSCCLPP_DEVICE_INLINE void write(uint64_t index, const T& v) {
    static_cast<T*>(dst_)[index] = v;
  }

  // Copies bytes of this rank's memory (origin) to the peer's (target). See copy_device.hpp for the alignment.
  template <int Alignment = 16, bool CopyRemainder = true>
  MSCCLPP_DEVICE_INLINE void put(uint64_t targetOffset, uint64_t originOffset, uint64_t originBytes, uint32_t threadId,
                                 uint32_t numThreads) {
    detail::copyBytes<true, Alignment, CopyRemainder>(static_cast<char*>(dst_) + targetOffset,
                                                      static_cast<const char*>(src_) + originOffset, originBytes,
                                                      threadId, numThreads);
  }
  template <int Alignment = 16, bool CopyRemainder = true>
  MSCCLPP_DEVICE_INLINE void put(uint64_t offset, uint64_t originBytes, uint32_t threadId, uint32_t numThreads) {
    put<Alignment, CopyRemainder>(offset, offset, originBytes, threadId, numThreads);
  }

  // Copies bytes of the peer's memory (origin) to this rank's (target).
  template <int Alignment = 16, bool CopyRemainder = true>
  MSCCLPP_DEVICE_INLINE void get(uint64_t targetOffset, uint64_t originOffset, uint64_t originBytes, uint32_t threadId,
                                 uint32_t numThreads) {
    detail::copyBytes<true, Alignment, CopyRemainder>(static_cast<char*>(src_) + targetOffset,
                                                      static_cast<const char*>(dst_) + originOffset, originBytes,
                                                      threadId, numThreads);
  }
  template <int Alignment = 16, bool CopyRemainder = true>
  MSCCLPP_DEVICE_INLINE void get(uint64_t offset, uint64_t originBytes, uint32_t threadId, uint32_t numThreads) {
    get<Alignment, CopyRemainder>(offset, offset, originBytes, threadId, numThreads);
  }

  // Writes bytes of this rank's memory as packets to the peer's. Packets take twice the space of their data, so the
  // packets of data at an offset usually start at twice that offset.
  template <typename PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE void putPackets(uint64_t targetOffset, uint64_t originOffset, uint64_t originBytes,
                                        uint32_t threadId, uint32_t numThreads, uint32_t flag) {
    copyToPackets<PacketType>(static_cast<char*>(dst_) + targetOffset, static_cast<const char*>(src_) + originOffset,
                              originBytes, threadId, numThreads, flag);
  }

  // Waits for packets in this rank's packet buffer, and writes their data to its memory. Returns 0 or the error.
  template <typename PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE int unpackPackets(uint64_t packetOffset, uint64_t dataOffset, uint64_t dataBytes,
                                          uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                          int64_t maxSpinCount = -1) {
    return detail::copyFromPackets(static_cast<char*>(src_) + dataOffset,
                                   reinterpret_cast<const PacketType*>(static_cast<char*>(packetBuffer_) + packetOffset),
                                   dataBytes, threadId, numThreads, flag, semaphore_.abort_, semaphore_.peer_,
                                   maxSpinCount);
  }

  // The older name.
  template <typename PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE int getPackets(uint64_t packetOffset, uint64_t dataOffset, uint64_t dataBytes,
                                       uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                       int64_t maxSpinCount = -1) {
    return unpackPackets<PacketType>(packetOffset, dataOffset, dataBytes, threadId, numThreads, flag, maxSpinCount);
  }

  // Waits for one packet of this rank's packet buffer. On a timeout, which the host learns of, the data are invalid.
  template <typename PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE typename PacketType::Payload unpackPacket(uint64_t index, uint32_t flag,
                                                                  int64_t maxSpinCount = -1) const {
    typename PacketType::Payload data;
    static_cast<const PacketType*>(packetBuffer_)[index].read(flag, data, semaphore_.abort_, semaphore_.peer_,
                                                              maxSpinCount);
    return data;
  }
#endif

  void* dst_;
  void* src_;
  void* packetBuffer_;
};
static_assert(sizeof(MemoryChannelDeviceHandle) == 64, "the host lays out this handle");

// The older names.
using BaseSmChannelDeviceHandle = BaseMemoryChannelDeviceHandle;
using SmChannelDeviceHandle = MemoryChannelDeviceHandle;

}  // namespace mscclpp

#endif  // MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_
