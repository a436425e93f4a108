// Semaphores between ranks: a word that counts signals, and a private count of those that were waited for.
#ifndef MSCCLPP_SEMAPHORE_DEVICE_HPP_
#define MSCCLPP_SEMAPHORE_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/poll_device.hpp>

namespace mscclpp {

#if defined(MSCCLPP_DEVICE_CUDA)
namespace detail {

// One more signal has been waited for: true if it is there. Never counts what has not come.
MSCCLPP_DEVICE_INLINE bool pollSignal(const uint64_t* inbound, uint64_t* expected) {
  const uint64_t before = loadRelaxedGpu(expected);
  if (loadAcquireSys(inbound) <= before) return false;
  return swapIfAcqRelGpu(expected, before, before + 1) == before;
}

// Waits for one more signal. Threads that wait at the same time wait for one each.
MSCCLPP_DEVICE_INLINE int waitSignal(const uint64_t* inbound, uint64_t* expected, AbortPage* page, int peer,
                                     int64_t maxSpinCount) {
  const uint64_t number = fetchAddRelaxedGpu(expected, 1) + 1;
  Patience patience(page, DeviceError::Signal, peer, maxSpinCount);
  while (loadAcquireSys(inbound) < number) {
    if (patience.isOver()) {
      // It was not received.
      fetchAddRelaxedGpu(expected, ~uint64_t(0));
      return patience.error();
    }
  }
  return DeviceError::None;
}

}  // namespace detail
#endif  // MSCCLPP_DEVICE_CUDA

// Signalled by a host (through a proxy), waited for by a kernel.
struct Host2DeviceSemaphoreDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Whether one more signal has come; if so, it is received.
  MSCCLPP_DEVICE_INLINE bool poll() { return detail::pollSignal(inbound_, expected_); }

  // Waits for one more signal. 0, or the error.
  MSCCLPP_DEVICE_INLINE int wait(int64_t maxSpinCount = -1) {
    return detail::waitSignal(inbound_, expected_, abort_, peer_, maxSpinCount);
  }
#endif

  uint64_t* inbound_;
  uint64_t* expected_;
  AbortPage* abort_;
  int32_t peer_;
  int32_t padding_;
};
static_assert(sizeof(Host2DeviceSemaphoreDeviceHandle) == 32, "the host lays out this handle");

// Signalled by a kernel, waited for by another.
struct MemoryDevice2DeviceSemaphoreDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Whether one more signal has come; if so, it is received.
  MSCCLPP_DEVICE_INLINE bool poll() { return detail::pollSignal(inbound_, expected_); }

  // Waits for one more signal. What the other side wrote before it is seen. 0, or the error.
  MSCCLPP_DEVICE_INLINE int wait(int64_t maxSpinCount = -1) {
    return detail::waitSignal(inbound_, expected_, abort_, peer_, maxSpinCount);
  }

  // Signals, behind all that this thread wrote, and other threads before a barrier that this one passed.
  MSCCLPP_DEVICE_INLINE void signal() { detail::addReleaseSys(remoteInbound_, 1); }

  // Signals, in no order with other writes.
  MSCCLPP_DEVICE_INLINE void relaxedSignal() { detail::addRelaxedSys(remoteInbound_, 1); }
#endif

  uint64_t* inbound_;
  uint64_t* remoteInbound_;
  uint64_t* expected_;
  AbortPage* abort_;
  int32_t peer_;
  int32_t padding_;
};
static_assert(sizeof(MemoryDevice2DeviceSemaphoreDeviceHandle) == 40, "the host lays out this handle");

// As it was called before.
using SmDevice2DeviceSemaphoreDeviceHandle = MemoryDevice2DeviceSemaphoreDeviceHandle;

}  // namespace mscclpp

#endif  // MSCCLPP_SEMAPHORE_DEVICE_HPP_
