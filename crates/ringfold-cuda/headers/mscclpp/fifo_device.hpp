// The FIFO of requests from kernels to a proxy on the host.
#ifndef MSCCLPP_FIFO_DEVICE_HPP_
#define MSCCLPP_FIFO_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/poll_device.hpp>

namespace mscclpp {

// The operations of a trigger; they may be combined.
using TriggerType = uint64_t;
constexpr TriggerType TriggerData = 1;
constexpr TriggerType TriggerFlag = 2;
constexpr TriggerType TriggerSync = 4;

// Sixteen bytes of any meaning, except that bit 63 of `snd` is reserved for the FIFO.
//
// The proxies of port channels read:
//   fst   size 0..32, source offset 32..64
//   snd   destination offset 0..32, source memory 32..41, destination memory 41..50, type 50..53, semaphore 53..63
struct ProxyTrigger {
  uint64_t fst;
  uint64_t snd;
};
static_assert(sizeof(ProxyTrigger) == 16, "the host reads these bytes");

// Slots and tail are in host memory; the head and a cached tail are on the device. A slot is never cleared: bit 63 of
// `snd` is 1 in the first lap, 0 in the second, and so on, by which the host recognises new triggers. The number of
// slots is a power of two, at least the size: a division by any number takes a quarter of a microsecond.
//
// Reads of one word of host memory are serialised, at about a microsecond each. So one waiting thread at a time reads
// the tail, for all of them; bit 63 of the cached tail is set meanwhile.
struct FifoDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Waits for room and pushes a trigger, ordered after all writes of this thread (and those of others before a barrier
  // that it passed). Returns its position, or all ones if the wait timed out.
  MSCCLPP_DEVICE_INLINE uint64_t push(ProxyTrigger trigger, int64_t maxSpinCount = -1) {
    return pushFor(-1, trigger, maxSpinCount);
  }

  // Waits until the trigger at this position has been executed and popped. Returns 0 or the error.
  MSCCLPP_DEVICE_INLINE int sync(uint64_t position, int64_t maxSpinCount = -1) {
    return syncFor(-1, position, maxSpinCount);
  }

  // Whether the trigger at this position has been executed and popped.
  MSCCLPP_DEVICE_INLINE bool poll(uint64_t position) { return detail::loadAcquireSys(tail_) > position; }

  // As `push`; a timeout is reported for this peer.
  MSCCLPP_DEVICE_INLINE uint64_t pushFor(int peer, ProxyTrigger trigger, int64_t maxSpinCount = -1) {
    // Copied once: the handle is often in memory, and would be read again after each access.
    const FifoDeviceHandle self = *this;
    const uint64_t size = static_cast<uint64_t>(self.size_);
    // Both accesses are in flight at once. The fence orders them, and all earlier writes, before the trigger.
    uint64_t tail = detail::loadRelaxedGpu(self.tailCache_) & ~readBit;
    const uint64_t position = detail::fetchAddRelaxedGpu(self.head_, 1);
    detail::fenceSys();
    const uint64_t lap = position >> self.slotBits_;
    ProxyTrigger* slot = &self.triggers_[position - (lap << self.slotBits_)];
    const uint64_t snd = (trigger.snd & ~(uint64_t(1) << 63)) | (((lap & 1) ^ 1) << 63);
    SpinGuard guard(self.abort_, DeviceError::FifoSpace, peer, maxSpinCount);
    int outcome = 0;
    do {
      if (position < size + tail) {
        detail::storeRelaxedSys16(slot, trigger.fst, snd);
        outcome = 1;
      } else {
        tail = self.refreshTail(maxSpinCount >= 0);
        if (position >= size + tail && guard.shouldStop()) outcome = 2;
      }
      // Hides the outcome from the compiler, so that it keeps the store within the loop: if the threads of a warp
      // converged after the loop first, one with room would wait there for one that needs its trigger to be popped.
      asm volatile("" : "+r"(outcome));
    } while (outcome == 0);
    return outcome == 1 ? position : ~uint64_t(0);
  }

  MSCCLPP_DEVICE_INLINE int syncFor(int peer, uint64_t position, int64_t maxSpinCount = -1) {
    if (position == ~uint64_t(0)) return DeviceError::FifoSpace;
    const FifoDeviceHandle self = *this;
    SpinGuard guard(self.abort_, DeviceError::Flush, peer, maxSpinCount);
    while (self.refreshTail(maxSpinCount >= 0) <= position) {
      if (guard.shouldStop()) return guard.error();
    }
    return DeviceError::None;
  }

 private:
  static constexpr uint64_t readBit = uint64_t(1) << 63;

  // The cached tail, or the tail itself if no other thread is reading it. Counted polls always read the tail itself.
  MSCCLPP_DEVICE_INLINE uint64_t refreshTail(bool isCounted) const {
    const uint64_t seen = detail::loadAcquireGpu(tailCache_);
    const bool isReader = (seen & readBit) == 0 && detail::isFirstActiveLane() &&
                          detail::compareSwapAcqRelGpu(tailCache_, seen, seen | readBit) == seen;
    if (!isReader && !isCounted) return seen & ~readBit;
    const uint64_t tail = detail::loadAcquireSys(tail_);
    if (isReader) detail::storeReleaseGpu(tailCache_, tail);
    return tail;
  }

 public:
#endif

  ProxyTrigger* triggers_;
  uint64_t* head_;
  uint64_t* tail_;
  uint64_t* tailCache_;
  AbortPage* abort_;
  int32_t size_;
  int32_t slotBits_;
};
static_assert(sizeof(FifoDeviceHandle) == 48, "the host lays out this handle");

}  // namespace mscclpp

#endif  // MSCCLPP_FIFO_DEVICE_HPP_
