// Memory channels: a kernel reads and writes memory of the other side itself. Many threads share a copy.
#ifndef MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_
#define MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_

#include <mscclpp/copy_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/packet_device.hpp>
#include <mscclpp/semaphore_device.hpp>

namespace mscclpp {

// Signals alone.
struct BaseMemoryChannelDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Signals, behind all that this thread wrote, and other threads before a barrier that this one passed.
  MSCCLPP_DEVICE_INLINE void signal() { semaphore_.signal(); }

  // Signals, in no order with other writes.
  MSCCLPP_DEVICE_INLINE void relaxedSignal() { semaphore_.relaxedSignal(); }

  // Whether one more signal has come; if so, it is received.
  MSCCLPP_DEVICE_INLINE bool poll() { return semaphore_.poll(); }

  // Waits for one more signal. 0, or the error.
  MSCCLPP_DEVICE_INLINE int wait(int64_t maxSpinCount = -1) { return semaphore_.wait(maxSpinCount); }
#endif

  MemoryDevice2DeviceSemaphoreDeviceHandle semaphore_;
};
static_assert(sizeof(BaseMemoryChannelDeviceHandle) == 40, "the host lays out this handle");

// The destination is the other side's memory, the source is mine; packets of the other side arrive in my packet buffer.
struct MemoryChannelDeviceHandle : public BaseMemoryChannelDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // An element of the other side's memory.
  template <typename T>
  MSCCLPP_DEVICE_INLINE T read(uint64_t index) const {
    return static_cast<const T*>(dst_)[index];
  }
  template <typename T>
  MSCCLPP_DEVICE_INLINE void write(uint64_t index, const T& v) {
    static_cast<T*>(dst_)[index] = v;
  }

  // Copies bytes of my memory (the origin) to the other side's (the target). Of the alignment see copy_device.hpp.
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

  // Copies bytes of the other side's memory (the origin) to mine (the target).
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

  // Writes bytes of my memory as packets into the other side's. Packets take twice the room of their data, so that
  // the packets of data at an offset usually begin at twice that offset.
  template <typename PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE void putPackets(uint64_t targetOffset, uint64_t originOffset, uint64_t originBytes,
                                        uint32_t threadId, uint32_t numThreads, uint32_t flag) {
    copyToPackets<PacketType>(static_cast<char*>(dst_) + targetOffset, static_cast<const char*>(src_) + originOffset,
                              originBytes, threadId, numThreads, flag);
  }

  // Waits for packets in my packet buffer, and writes their data into my memory. 0, or the error.
  template <typename PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE int unpackPackets(uint64_t packetOffset, uint64_t dataOffset, uint64_t dataBytes,
                                          uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                          int64_t maxSpinCount = -1) {
    return detail::copyFromPackets(static_cast<char*>(src_) + dataOffset,
                                   reinterpret_cast<const PacketType*>(static_cast<char*>(packetBuffer_) + packetOffset),
                                   dataBytes, threadId, numThreads, flag, semaphore_.abort_, semaphore_.peer_,
                                   maxSpinCount);
  }

  // As it was called before.
  template <typename PacketType = LL16Packet>
  MSCCLPP_DEVICE_INLINE int getPackets(uint64_t packetOffset, uint64_t dataOffset, uint64_t dataBytes,
                                       uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                       int64_t maxSpinCount = -1) {
    return unpackPackets<PacketType>(packetOffset, dataOffset, dataBytes, threadId, numThreads, flag, maxSpinCount);
  }

  // Waits for one packet of my packet buffer, by its number. If it gives up, the host knows, and the data are not
  // those of the packet.
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

// As they were called before.
using BaseSmChannelDeviceHandle = BaseMemoryChannelDeviceHandle;
using SmChannelDeviceHandle = MemoryChannelDeviceHandle;

}  // namespace mscclpp

#endif  // MSCCLPP_MEMORY_CHANNEL_DEVICE_HPP_
