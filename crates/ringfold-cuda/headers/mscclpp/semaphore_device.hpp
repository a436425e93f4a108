// Semaphores between ranks: a word that counts signals, and a private count of the consumed ones.
#ifndef MSCCLPP_SEMAPHORE_DEVICE_HPP_
#define MSCCLPP_SEMAPHORE_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/poll_device.hpp>

namespace mscclpp {

#if defined(MSCCLPP_DEVICE_CUDA)
namespace detail {

// Consumes one more signal if it has arrived, and returns whether it has.
MSCCLPP_DEVICE_INLINE bool pollSignal(const uint64_t* inbound, uint64_t* expected) {
  const uint64_t before = loadRelaxedGpu(expected);
  if (loadAcquireSys(inbound) <= before) return false;
  return compareSwapAcqRelGpu(expected, before, before + 1) == before;
}

// Waits for one more signal. Threads that wait at the same time consume one each.
MSCCLPP_DEVICE_INLINE int waitSignal(const uint64_t* inbound, uint64_t* expected, AbortPage* page, int peer,
                                     int64_t maxSpinCount) {
  const uint64_t number = fetchAddRelaxedGpu(expected, 1) + 1;
  SpinGuard guard(page, DeviceError::Signal, peer, maxSpinCount);
  while (loadAcquireSys(inbound) < number) {
    if (guard.shouldStop()) {
      // It was not consumed.
      fetchAddRelaxedGpu(expected, ~uint64_t(0));
      return guard.error();
    }
  }
  return DeviceError::None;
}

}  // namespace detail
#endif  // MSCCLPP_DEVICE_CUDA

// A semaphore that a host (a proxy) signals and a kernel waits for.
struct Host2DeviceSemaphoreDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Whether one more signal has arrived; if so, it is consumed.
  MSCCLPP_DEVICE_INLINE bool poll() { return detail::pollSignal(inbound_, expected_); }

  // Waits for one more signal. Returns 0 or the error.
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

// A semaphore between kernels.
struct MemoryDevice2DeviceSemaphoreDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Whether one more signal has arrived; if so, it is consumed.
  MSCCLPP_DEVICE_INLINE bool poll() { return detail::pollSignal(inbound_, expected_); }

  // Waits for one more signal; the peer's writes before it are visible then. Returns 0 or the error.
  MSCCLPP_DEVICE_INLINE int wait(int64_t maxSpinCount = -1) {
    return detail::waitSignal(inbound_, expected_, abort_, peer_, maxSpinCount);
  }

  // Signals, ordered after all writes of this thread, and those of others before a barrier that it passed.
  MSCCLPP_DEVICE_INLINE void signal() { detail::addReleaseSys(remoteInbound_, 1); }

  // Signals, unordered with other writes.
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

// The older name.
using SmDevice2DeviceSemaphoreDeviceHandle = MemoryDevice2DeviceSemaphoreDeviceHandle;

}  // namespace mscclpp

#endif  // MSCCLPP_SEMAPHORE_DEVICE_HPP_
