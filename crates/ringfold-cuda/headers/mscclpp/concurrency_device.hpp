// How the blocks of one grid meet.
#ifndef MSCCLPP_CONCURRENCY_DEVICE_HPP_
#define MSCCLPP_CONCURRENCY_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/poll_device.hpp>

namespace mscclpp {

// A barrier between blocks that all run at the same time. Begins as zeros (a `__device__` variable does), and is never
// reset: it may be used again and again, by launches with different numbers of blocks, one after the other.
//
// One word holds the number of blocks that have arrived (low half) and of the meetings that are over (high half). Who
// arrives adds one and thereby learns which meeting this is; who arrives last takes all arrivals out and counts the
// meeting, by one addition. A block that gives up takes its arrival back, so that the barrier is whole afterwards.
struct DeviceSyncer {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Waits for all blocks; called by all threads of each. What any of them wrote before is seen by all afterwards.
  // 0, or the error, for all threads.
  MSCCLPP_DEVICE_INLINE int sync(int blockNum, int64_t maxSpinCount = -1) {
    __syncthreads();
    int isLost = 0;
    if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) {
      isLost = meet(static_cast<uint32_t>(blockNum), maxSpinCount);
    }
    return __syncthreads_or(isLost) != 0 ? DeviceError::Syncer : DeviceError::None;
  }

 private:
  MSCCLPP_DEVICE_INLINE int meet(uint32_t blocks, int64_t maxSpinCount) {
    const uint64_t before = detail::fetchAddAcqRelGpu(&meetingsAndArrivals_, 1);
    if (static_cast<uint32_t>(before) + 1 >= blocks) {
      detail::addReleaseGpu(&meetingsAndArrivals_, (uint64_t(1) << 32) - blocks);
      return 0;
    }
    const uint32_t meeting = static_cast<uint32_t>(before >> 32);
    Patience patience(nullptr, DeviceError::Syncer, -1, maxSpinCount);
    uint64_t now = detail::loadAcquireGpu(&meetingsAndArrivals_);
    while (static_cast<uint32_t>(now >> 32) == meeting) {
      if (patience.isOver()) return leave(meeting);
      now = detail::loadAcquireGpu(&meetingsAndArrivals_);
    }
    return 0;
  }

  // Takes the arrival back, unless the others have come after all.
  MSCCLPP_DEVICE_INLINE int leave(uint32_t meeting) {
    uint64_t now = detail::loadAcquireGpu(&meetingsAndArrivals_);
    while (static_cast<uint32_t>(now >> 32) == meeting) {
      const uint64_t before = detail::swapIfAcqRelGpu(&meetingsAndArrivals_, now, now - 1);
      if (before == now) return 1;
      now = before;
    }
    return 0;
  }

 public:
#endif

  uint64_t meetingsAndArrivals_;
  uint64_t reserved_;
};
static_assert(sizeof(DeviceSyncer) == 16, "two words");

// A semaphore between threads of one grid, in device memory.
struct DeviceSemaphore {
  DeviceSemaphore() = default;
  MSCCLPP_HOST_DEVICE_INLINE constexpr DeviceSemaphore(int initValue) : value_(initValue) {}

#if defined(MSCCLPP_DEVICE_CUDA)
  // Sets the number of places.
  MSCCLPP_DEVICE_INLINE void set(int value) { detail::storeReleaseGpu(&value_, value); }

  // Takes a place, as soon as there is one. 0, or the error.
  MSCCLPP_DEVICE_INLINE int acquire(int64_t maxSpinCount = -1) {
    Patience patience(nullptr, DeviceError::Syncer, -1, maxSpinCount);
    for (;;) {
      const int places = detail::loadRelaxedGpu(&value_);
      if (places > 0 && detail::swapIfAcquireGpu(&value_, places, places - 1) == places) return DeviceError::None;
      if (patience.isOver()) return patience.error();
    }
  }

  // Gives a place back, behind all that was written before.
  MSCCLPP_DEVICE_INLINE void release() { detail::addReleaseGpu(&value_, 1); }
#endif

  int value_;
};

}  // namespace mscclpp

#endif  // MSCCLPP_CONCURRENCY_DEVICE_HPP_
