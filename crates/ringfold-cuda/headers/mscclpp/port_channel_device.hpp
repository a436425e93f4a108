// Port channels: a kernel requests copies from a proxy on the host. One thread calls; copy engines or sockets move the
// bytes, depending on the connection.
//
// Sizes and offsets are below 4 GiB, memories below 512, semaphores below 1024: other requests are not pushed, and
// error 6 is reported to the host. Functions that push return 0 or the error.
#ifndef MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
#define MSCCLPP_PORT_CHANNEL_DEVICE_HPP_

#include <mscclpp/device.hpp>
#include <mscclpp/fifo_device.hpp>
#include <mscclpp/semaphore_device.hpp>

namespace mscclpp {

using SemaphoreId = uint32_t;
using MemoryId = uint32_t;

// A port channel whose puts name the memories.
struct BasePortChannelDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Requests a copy to the peer.
  MSCCLPP_DEVICE_INLINE int put(MemoryId dst, uint64_t dstOffset, MemoryId src, uint64_t srcOffset, uint64_t size) {
    return request(TriggerData, dst, dstOffset, src, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE int put(MemoryId dst, MemoryId src, uint64_t offset, uint64_t size) {
    return put(dst, offset, src, offset, size);
  }

  // Requests a signal to the peer, after all earlier puts.
  MSCCLPP_DEVICE_INLINE int signal() { return request(TriggerFlag, 0, 0, 0, 0, 0); }

  MSCCLPP_DEVICE_INLINE int putWithSignal(MemoryId dst, uint64_t dstOffset, MemoryId src, uint64_t srcOffset,
                                          uint64_t size) {
    return request(TriggerData | TriggerFlag, dst, dstOffset, src, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE int putWithSignal(MemoryId dst, MemoryId src, uint64_t offset, uint64_t size) {
    return putWithSignal(dst, offset, src, offset, size);
  }

  // Puts, signals, and waits until the source may be written again.
  MSCCLPP_DEVICE_INLINE int putWithSignalAndFlush(MemoryId dst, uint64_t dstOffset, MemoryId src, uint64_t srcOffset,
                                                  uint64_t size, int64_t maxSpinCount = -1) {
    return requestAndWait(TriggerData | TriggerFlag | TriggerSync, dst, dstOffset, src, srcOffset, size, maxSpinCount);
  }
  MSCCLPP_DEVICE_INLINE int putWithSignalAndFlush(MemoryId dst, MemoryId src, uint64_t offset, uint64_t size) {
    return putWithSignalAndFlush(dst, offset, src, offset, size);
  }

  // Waits until all earlier requests are done, and their sources may be written again.
  MSCCLPP_DEVICE_INLINE int flush(int64_t maxSpinCount = -1) {
    return requestAndWait(TriggerSync, 0, 0, 0, 0, 0, maxSpinCount);
  }

  // Whether one more signal has arrived; if so, it is consumed.
  MSCCLPP_DEVICE_INLINE bool poll() { return semaphore_.poll(); }

  // Waits for one more signal. Returns 0 or the error.
  MSCCLPP_DEVICE_INLINE int wait(int64_t maxSpinCount = -1) { return semaphore_.wait(maxSpinCount); }

 private:
  MSCCLPP_DEVICE_INLINE int request(TriggerType type, MemoryId dst, uint64_t dstOffset, MemoryId src, uint64_t srcOffset,
                                uint64_t size) {
    const uint64_t position = push(type, dst, dstOffset, src, srcOffset, size, -1);
    return position != ~uint64_t(0) ? DeviceError::None : pushError(dst, dstOffset, src, srcOffset, size);
  }

  MSCCLPP_DEVICE_INLINE int requestAndWait(TriggerType type, MemoryId dst, uint64_t dstOffset, MemoryId src,
                                       uint64_t srcOffset, uint64_t size, int64_t maxSpinCount) {
    const uint64_t position = push(type, dst, dstOffset, src, srcOffset, size, maxSpinCount);
    if (position == ~uint64_t(0)) return pushError(dst, dstOffset, src, srcOffset, size);
    return fifo_.syncFor(semaphore_.peer_, position, maxSpinCount);
  }

  MSCCLPP_DEVICE_INLINE bool isEncodable(MemoryId dst, uint64_t dstOffset, MemoryId src, uint64_t srcOffset,
                                       uint64_t size) const {
    return ((dstOffset | srcOffset | size) >> 32) == 0 && ((dst | src) >> 9) == 0 && (semaphoreId_ >> 10) == 0;
  }

  MSCCLPP_DEVICE_INLINE int pushError(MemoryId dst, uint64_t dstOffset, MemoryId src, uint64_t srcOffset,
                                    uint64_t size) const {
    return isEncodable(dst, dstOffset, src, srcOffset, size) ? DeviceError::FifoSpace : DeviceError::Argument;
  }

  MSCCLPP_DEVICE_INLINE uint64_t push(TriggerType type, MemoryId dst, uint64_t dstOffset, MemoryId src,
                                      uint64_t srcOffset, uint64_t size, int64_t maxSpinCount) {
    if (!isEncodable(dst, dstOffset, src, srcOffset, size)) {
      detail::report(fifo_.abort_, DeviceError::Argument, semaphore_.peer_, 0, 0);
      return ~uint64_t(0);
    }
    ProxyTrigger trigger;
    trigger.fst = size | (srcOffset << 32);
    trigger.snd = dstOffset | (uint64_t(src) << 32) | (uint64_t(dst) << 41) | (type << 50) |
                  (uint64_t(semaphoreId_) << 53);
    return fifo_.pushFor(semaphore_.peer_, trigger, maxSpinCount);
  }

 public:
#endif

  SemaphoreId semaphoreId_;
  uint32_t padding_;
  Host2DeviceSemaphoreDeviceHandle semaphore_;
  FifoDeviceHandle fifo_;
};
static_assert(sizeof(BasePortChannelDeviceHandle) == 88, "the host lays out this handle");

// A port channel between two fixed memories.
struct PortChannelDeviceHandle : public BasePortChannelDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Requests a copy from this rank's memory to the peer's.
  MSCCLPP_DEVICE_INLINE int put(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) {
    return BasePortChannelDeviceHandle::put(dst_, dstOffset, src_, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE int put(uint64_t offset, uint64_t size) { return put(offset, offset, size); }

  MSCCLPP_DEVICE_INLINE int putWithSignal(uint64_t dstOffset, uint64_t srcOffset, uint64_t size) {
    return BasePortChannelDeviceHandle::putWithSignal(dst_, dstOffset, src_, srcOffset, size);
  }
  MSCCLPP_DEVICE_INLINE int putWithSignal(uint64_t offset, uint64_t size) {
    return putWithSignal(offset, offset, size);
  }

  // Puts, signals, and waits until this rank's memory may be written again.
  MSCCLPP_DEVICE_INLINE int putWithSignalAndFlush(uint64_t dstOffset, uint64_t srcOffset, uint64_t size,
                                                  int64_t maxSpinCount = -1) {
    return BasePortChannelDeviceHandle::putWithSignalAndFlush(dst_, dstOffset, src_, srcOffset, size, maxSpinCount);
  }
  MSCCLPP_DEVICE_INLINE int putWithSignalAndFlush(uint64_t offset, uint64_t size) {
    return putWithSignalAndFlush(offset, offset, size);
  }
#endif

  MemoryId dst_;
  MemoryId src_;
};
static_assert(sizeof(PortChannelDeviceHandle) == 96, "the host lays out this handle");

// The older names.
using BaseProxyChannelDeviceHandle = BasePortChannelDeviceHandle;
using ProxyChannelDeviceHandle = PortChannelDeviceHandle;
using SimpleProxyChannelDeviceHandle = PortChannelDeviceHandle;

}  // namespace mscclpp

#endif  // MSCCLPP_PORT_CHANNEL_DEVICE_HPP_
