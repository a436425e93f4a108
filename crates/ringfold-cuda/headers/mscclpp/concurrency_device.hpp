// Barriers and semaphores between the blocks of one grid.
#ifndef MSCCLPP_CONCURRENCY_DEVICE_HPP_
#define MSCCLPP_CONCURRENCY_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/poll_device.hpp>

namespace mscclpp {

// A barrier between blocks that all run at the same time. It starts as zeros (as a `__device__` variable does) and is
// never reset: consecutive launches with different numbers of blocks may use it.
//
// One word holds the number of blocks that have arrived (low half) and of completed rounds (high half). A block arrives
// by adding one, which also returns the round. The last block removes all arrivals and counts the round, by one
// addition. A block that times out withdraws its arrival, so that the barrier stays usable.
struct DeviceSyncer {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Waits for all blocks; called by all their threads. Writes before the barrier are visible to all after it.
  // Returns 0 or the error, the same to all threads.
  MSCCLPP_DEVICE_INLINE int sync(int blockNum, int64_t maxSpinCount = -1) {
    __syncthreads();
    int hasFailed = 0;
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
      hasFailed = arriveAndWait(static_cast<uint32_t>(blockNum), maxSpinCount);
    }
    return __syncthreads_or(hasFailed) != 0 ? DeviceError::Syncer : DeviceError::None;
  }

 private:
  MSCCLPP_DEVICE_INLINE int arriveAndWait(uint32_t blocks, int64_t maxSpinCount) {
    const uint64_t before = detail::fetchAddAcqRelGpu(&roundsAndArrivals_, 1);
    if (static_cast<uint32_t>(before) + 1 >= blocks) {
      detail::addReleaseGpu(&roundsAndArrivals_, (uint64_t(1) << 32) - blocks);
      return 0;
    }
    const uint32_t round = static_cast<uint32_t>(before >> 32);
    SpinGuard guard(nullptr, DeviceError::Syncer, -1, maxSpinCount);
    uint64_t now = detail::loadAcquireGpu(&roundsAndArrivals_);
    while (static_cast<uint32_t>(now >> 32) == round) {
      if (guard.shouldStop()) return withdraw(round);
      now = detail::loadAcquireGpu(&roundsAndArrivals_);
    }
    return 0;
  }

  // Withdraws the arrival, unless the others have arrived meanwhile.
  MSCCLPP_DEVICE_INLINE int withdraw(uint32_t round) {
    uint64_t now = detail::loadAcquireGpu(&roundsAndArrivals_);
    while (static_cast<uint32_t>(now >> 32) == round) {
      const uint64_t before = detail::compareSwapAcqRelGpu(&roundsAndArrivals_, now, now - 1);
      if (before == now) return 1;
      now = before;
    }
    return 0;
  }

 public:
#endif

  uint64_t roundsAndArrivals_;
  uint64_t reserved_;
};
static_assert(sizeof(DeviceSyncer) == 16, "two words");

// A semaphore between threads of one grid, in device memory.
struct DeviceSemaphore {
  DeviceSemaphore() = default;
  MSCCLPP_HOST_DEVICE_INLINE constexpr DeviceSemaphore(int initValue) : value_(initValue) {}

#if defined(MSCCLPP_DEVICE_CUDA)
  // Sets the number of permits.
  MSCCLPP_DEVICE_INLINE void set(int value) { detail::storeReleaseGpu(&value_, value); }

  // Waits for a permit and takes it. Returns 0 or the error.
  MSCCLPP_DEVICE_INLINE int acquire(int64_t maxSpinCount = -1) {
    SpinGuard guard(nullptr, DeviceError::Syncer, -1, maxSpinCount);
    for (;;) {
      const int permits = detail::loadRelaxedGpu(&value_);
      if (permits > 0 && detail::compareSwapAcquireGpu(&value_, permits, permits - 1) == permits) return DeviceError::None;
      if (guard.shouldStop()) return guard.error();
    }
  }

  // Returns a permit, ordered after all earlier writes.
  MSCCLPP_DEVICE_INLINE void release() { detail::addReleaseGpu(&value_, 1); }
#endif

  int value_;
};

}  // namespace mscclpp

#endif  // MSCCLPP_CONCURRENCY_DEVICE_HPP_
