// How waits end: the page through which host and device report failures to each other, and the guard that every
// waiting loop uses.
#ifndef MSCCLPP_ABORT_DEVICE_HPP_
#define MSCCLPP_ABORT_DEVICE_HPP_

#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>

namespace mscclpp {

// What a failed wait was for, or another error: returned by waits, and reported to the host through the page.
struct DeviceError {
  enum Kind : int {
    None = 0,
    Signal = 1,     // a semaphore
    FifoSpace = 2,  // room in a FIFO
    Flush = 3,      // the proxy
    Packet = 4,     // a packet
    Syncer = 5,     // the other blocks of this grid, or a semaphore between them
    Argument = 6,   // an offset, a size or a number that a trigger cannot represent
    Assertion = 7,  // MSCCLPP_ASSERT_DEVICE
    Bulk = 8,       // a bulk copy
    Bounds = 9,     // memory outside of a window, or of an unknown rank
  };
};

// The words that waits read now and then: whether to stop, and the time limit.
struct alignas(128) AbortLine {
  uint64_t flag;
  uint64_t spinNs;
  // Used in the first line of a page only.
  uint64_t errorWord;
  uint64_t waitedNs;
};

// In mapped host memory. The host sets the flag to 1 to end all waits. The first wait that times out writes what it
// waited for, and sets the flag to 2, which ends the others. The report is one word, since few devices support atomic
// operations on host memory: the error in the lowest 8 bits, the source line in the next 24, and the rank, or -1, in
// the upper half.
//
// Reads of one line of host memory are serialised, at about a microsecond each. So there are many identical lines, and
// warps read different ones.
struct AbortPage {
  static constexpr uint32_t count = 32;
  AbortLine lines[count];
};
static_assert(sizeof(AbortPage) == 4096, "the host lays out this page");

}  // namespace mscclpp

#if defined(MSCCLPP_DEVICE_CUDA)

// The page of the process, for waits without a handle; 0 if there is none. The host sets it when it loads a module, and
// finds it by this name. Objects that are linked into one module share it.
extern "C" {
#if defined(__CUDACC_RDC__)
inline __device__ unsigned long long mscclppAbortPage = 0;
#else
__device__ unsigned long long mscclppAbortPage = 0;
#endif
}

namespace mscclpp {
namespace detail {

// The time limit if the host has set none: five minutes.
constexpr uint64_t spinDefaultNs = 300ull * 1000 * 1000 * 1000;
// Polls of the awaited word between two reads of the clock. Must be a power of two.
constexpr uint32_t pollsPerClock = 8;
// Cycles between two reads of the page, at first and at most: about 10 us and 300 us. The page is in host memory, and
// thousands of threads may be waiting.
constexpr uint32_t cyclesPerPageFirst = 1u << 14;
constexpr uint32_t cyclesPerPageMax = 1u << 19;

MSCCLPP_DEVICE_INLINE AbortPage* pageOf(AbortPage* page) {
  if (page != nullptr) return page;
  // No kernel writes it, so a compiler might treat it as a constant.
  return reinterpret_cast<AbortPage*>(*const_cast<volatile unsigned long long*>(&mscclppAbortPage));
}

// Reports an error to the host, unless one was reported before, and ends all waits.
MSCCLPP_DEVICE_INLINE void report(AbortPage* page, int error, int peer, uint32_t line, uint64_t waitedNs) {
  page = pageOf(page);
  if (page == nullptr) return;
  // Of several simultaneous reports any one may win.
  AbortLine& first = page->lines[0];
  if (loadRelaxedSys(&first.errorWord) != 0) return;
  storeRelaxedSys(&first.waitedNs, waitedNs);
  storeRelaxedSys(&first.errorWord, static_cast<uint64_t>(static_cast<uint32_t>(peer)) << 32 | (line & 0xffffffu) << 8 |
                                   static_cast<uint32_t>(error));
  // After the report. A flag that the host has set meanwhile has the same effect.
  if (loadRelaxedSys(&first.flag) != 0) return;
  fenceSys();
  for (uint32_t other = 1; other < AbortPage::count; ++other) storeRelaxedSys(&page->lines[other].flag, 2);
  // The last one: the host reads it, and may clear all of them then.
  fenceSys();
  storeRelaxedSys(&first.flag, 2);
}

}  // namespace detail

// The guard of a waiting loop:
//
//   SpinGuard guard(page, DeviceError::Signal, peer, maxSpinCount);
//   while (!isReady()) {
//     if (guard.shouldStop()) return guard.error();
//   }
//
// The loop stops after `maxSpinCount` polls (negative: no limit), after the page's time limit, or when the page's flag
// is set. Most polls cost one addition each; the clock is read now and then, and the page rarely.
class SpinGuard {
 public:
  // A null page means the process's page; `limitNs` is a time limit instead of the page's, if it is not 0.
  MSCCLPP_DEVICE_INLINE SpinGuard(AbortPage* page, int error, int peer, int64_t maxSpinCount, uint64_t limitNs = 0)
      : page_(page),
        limitNs_(limitNs),
        startNs_(0),
        polls_(0),
        maxPolls_(static_cast<uint64_t>(maxSpinCount)),
        lastPage_(0),
        cyclesPerPage_(0),
        error_(error),
        peer_(peer) {}

  // Called after each failed poll: whether to stop. The error is reported to the host by then.
  MSCCLPP_DEVICE_INLINE bool shouldStop() {
    ++polls_;
    // As an unsigned number, a negative bound is above all counts.
    const bool isExhausted = polls_ >= maxPolls_;
    if (!isExhausted && (static_cast<uint32_t>(polls_) & (detail::pollsPerClock - 1)) != 0) return false;
    return checkLimits(isExhausted);
  }

  // The error of this wait.
  MSCCLPP_DEVICE_INLINE int error() const { return error_; }

 private:
  MSCCLPP_DEVICE_INLINE bool checkLimits(bool isExhausted) {
    if (!isExhausted) {
      const uint32_t now = detail::cycles();
      if (cyclesPerPage_ == 0) {
        lastPage_ = now;
        cyclesPerPage_ = detail::cyclesPerPageFirst;
      }
      if (now - lastPage_ < cyclesPerPage_) return false;
      lastPage_ = now;
      if (cyclesPerPage_ < detail::cyclesPerPageMax) cyclesPerPage_ *= 2;
    }
    // The time limit starts with the first read of the wall clock, some microseconds late.
    const uint64_t nowNs = detail::nanoseconds();
    if (startNs_ == 0) startNs_ = nowNs;
    const uint64_t waitedNs = nowNs - startNs_;
    if (!isExhausted) {
      uint64_t limitNs = 0;
      if (AbortPage* page = detail::pageOf(page_)) {
        // The reason was reported with the flag; this wait only ends.
        uint64_t flag;
        detail::loadRelaxedSys2(&page->lines[detail::warpNumber() % AbortPage::count].flag, flag, limitNs);
        if (flag != 0) return true;
      }
      if (limitNs_ != 0) limitNs = limitNs_;
      if (waitedNs < (limitNs == 0 ? detail::spinDefaultNs : limitNs)) return false;
    }
    detail::report(page_, error_, peer_, 0, waitedNs);
    return true;
  }

  AbortPage* page_;
  uint64_t limitNs_;
  uint64_t startNs_;
  uint64_t polls_;
  uint64_t maxPolls_;
  uint32_t lastPage_;
  uint32_t cyclesPerPage_;
  int error_;
  int peer_;
};

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_ABORT_DEVICE_HPP_
