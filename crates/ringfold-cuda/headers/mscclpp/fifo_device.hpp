// The FIFO through which kernels ask a proxy on the host to do something.
#ifndef MSCCLPP_FIFO_DEVICE_HPP_
#define MSCCLPP_FIFO_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/poll_device.hpp>

namespace mscclpp {

// What a trigger asks for; several may be added up.
using TriggerType = uint64_t;
constexpr TriggerType TriggerData = 1;
constexpr TriggerType TriggerFlag = 2;
constexpr TriggerType TriggerSync = 4;

// Sixteen bytes. What they say is up to whoever pushes and pops them, but for bit 63 of `snd`, which is the FIFO's.
//
// Proxies of channels read:
//   fst   size 0..32, source offset 32..64
//   snd   destination offset 0..32, source memory 32..41, destination memory 41..50, type 50..53, semaphore 53..63
struct ProxyTrigger {
  uint64_t fst;
  uint64_t snd;
};
static_assert(sizeof(ProxyTrigger) == 16, "the host reads these bytes");

// Slots and tail are in host memory, the head and the last tail that was seen on the device. A slot is never cleared:
// bit 63 of `snd` is 1 in the first lap, 0 in the second, and so on, and tells the host what is new.
//
// Reads of one word of the host's memory come one after the other, a microsecond each, whoever reads. So of those that
// wait one at a time reads the tail, for all of them; bit 63 of the tail that was seen last says that one does.
struct FifoDeviceHandle {
#if defined(MSCCLPP_DEVICE_CUDA)
  // Pushes a trigger, as soon as there is room, behind all that this thread wrote (and others before a barrier that it
  // passed). Gives its position, or all ones if there was no room in time.
  MSCCLPP_DEVICE_INLINE uint64_t push(ProxyTrigger trigger, int64_t maxSpinCount = -1) {
    return pushTowards(-1, trigger, maxSpinCount);
  }

  // Waits until the trigger at this position has been executed and popped. 0, or the error.
  MSCCLPP_DEVICE_INLINE int sync(uint64_t position, int64_t maxSpinCount = -1) {
    return syncTowards(-1, position, maxSpinCount);
  }

  // Whether the trigger at this position has been executed and popped.
  MSCCLPP_DEVICE_INLINE bool poll(uint64_t position) { return detail::loadAcquireSys(tail_) > position; }

  // The same, for the sake of this rank.
  MSCCLPP_DEVICE_INLINE uint64_t pushTowards(int peer, ProxyTrigger trigger, int64_t maxSpinCount = -1) {
    // Read all at once, and not again after each access: a handle is often in memory, where each of them takes a while.
    const FifoDeviceHandle self = *this;
    const uint64_t size = static_cast<uint64_t>(self.size_);
    const uint64_t position = detail::fetchAddRelaxedGpu(self.head_, 1);
    const uint64_t lap = position / size;
    const uint64_t snd = (trigger.snd & ~(uint64_t(1) << 63)) | (((lap & 1) ^ 1) << 63);
    uint64_t tail = detail::loadAcquireGpu(self.tailCache_) & ~readBit;
    Patience patience(self.abort_, DeviceError::Room, peer, maxSpinCount);
    int outcome = 0;
    do {
      if (position < size + tail) {
        detail::storeReleaseSys16(&self.triggers_[position - lap * size], trigger.fst, snd);
        outcome = 1;
      } else {
        tail = self.newTail(maxSpinCount >= 0);
        if (position >= size + tail && patience.isOver()) outcome = 2;
      }
      // Hides the outcome from the compiler, so that it leaves the store within the loop: if threads of a warp met
      // behind the loop first, one that has room would wait there for one that needs its trigger to be popped.
      asm volatile("" : "+r"(outcome));
    } while (outcome == 0);
    return outcome == 1 ? position : ~uint64_t(0);
  }

  MSCCLPP_DEVICE_INLINE int syncTowards(int peer, uint64_t position, int64_t maxSpinCount = -1) {
    if (position == ~uint64_t(0)) return DeviceError::Room;
    const FifoDeviceHandle self = *this;
    Patience patience(self.abort_, DeviceError::Flush, peer, maxSpinCount);
    while (self.newTail(maxSpinCount >= 0) <= position) {
      if (patience.isOver()) return patience.error();
    }
    return DeviceError::None;
  }

 private:
  static constexpr uint64_t readBit = uint64_t(1) << 63;

  // The tail, as it was seen a moment ago or, at the latest when nobody else reads it, as it is. A look that is counted
  // is always one at the tail itself.
  MSCCLPP_DEVICE_INLINE uint64_t newTail(bool isCounted) const {
    const uint64_t seen = detail::loadAcquireGpu(tailCache_);
    const bool isReader = (seen & readBit) == 0 && detail::isFirstHere() &&
                          detail::swapIfAcqRelGpu(tailCache_, seen, seen | readBit) == seen;
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
  int32_t padding_;
};
static_assert(sizeof(FifoDeviceHandle) == 48, "the host lays out this handle");

}  // namespace mscclpp

#endif  // MSCCLPP_FIFO_DEVICE_HPP_
