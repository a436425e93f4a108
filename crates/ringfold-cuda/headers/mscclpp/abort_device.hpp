// How waits end: the page through which host and device tell each other that something is wrong, and the one guard
// that every loop which waits goes through.
#ifndef MSCCLPP_ABORT_DEVICE_HPP_
#define MSCCLPP_ABORT_DEVICE_HPP_

#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>

namespace mscclpp {

// What a wait was for, or what else was wrong: what waits return, and what the host reads in the page.
struct DeviceError {
  enum Kind : int {
    None = 0,
    Signal = 1,     // a semaphore
    Room = 2,       // a place in a FIFO
    Flush = 3,      // the proxy
    Packet = 4,     // a packet
    Syncer = 5,     // the other blocks of this grid, or a semaphore between them
    Argument = 6,   // an offset, a size or a number that no trigger can say
    Assertion = 7,  // MSCCLPP_ASSERT_DEVICE
  };
};

// What a wait looks at now and then: whether to go on, and how long.
struct alignas(128) AbortLine {
  uint64_t flag;
  uint64_t spinNs;
  // In the first line of a page only.
  uint64_t told;
  uint64_t waitedNs;
};

// In mapped host memory. The host sets the flag to 1 to end all waits; the first wait that gives up by itself says here
// what it waited for, and sets the flag to 2, which ends the others. What it says is one word, since few devices can
// change words of the host's memory by atomic operations: the error in the lowest 8 bits, the line of the source in the
// next 24, and the rank, or -1, in the upper half.
//
// Reads of one line of the host's memory come one after the other, a microsecond each, whoever reads. So there are many
// lines that say the same, and warps look at different ones.
struct AbortPage {
  static constexpr uint32_t count = 32;
  AbortLine lines[count];
};
static_assert(sizeof(AbortPage) == 4096, "the host lays out this page");

}  // namespace mscclpp

#if defined(MSCCLPP_DEVICE_CUDA)

// The page of the process, for waits that have no handle; 0 if there is none. Whoever loads a module sets it.
// It must be found by this name in every module. Where several objects are linked into one, they share it.
extern "C" {
#if defined(__CUDACC_RDC__)
inline __device__ unsigned long long mscclppAbortPage = 0;
#else
__device__ unsigned long long mscclppAbortPage = 0;
#endif
}

namespace mscclpp {
namespace detail {

// The bound of a wait where the host has not set one: five minutes. A late peer is no error.
constexpr uint64_t spinDefaultNs = 300ull * 1000 * 1000 * 1000;
// How many looks at the awaited word go by between looks at the clock. Must be a power of two.
constexpr uint32_t looksPerClock = 8;
// How many cycles go by before the page is looked at, at first and at most: about 10 us and 300 us. The page is in host
// memory, and thousands of threads may be waiting.
constexpr uint32_t cyclesPerPageFirst = 1u << 14;
constexpr uint32_t cyclesPerPageMost = 1u << 19;

MSCCLPP_DEVICE_INLINE AbortPage* pageOf(AbortPage* page) {
  if (page != nullptr) return page;
  // No kernel writes it, so a compiler might take it for a constant.
  return reinterpret_cast<AbortPage*>(*const_cast<volatile unsigned long long*>(&mscclppAbortPage));
}

// Tells the host, unless something was told before, and ends all waits.
MSCCLPP_DEVICE_INLINE void report(AbortPage* page, int error, int peer, uint32_t line, uint64_t waitedNs) {
  page = pageOf(page);
  if (page == nullptr) return;
  // Of several at once any may stay.
  AbortLine& first = page->lines[0];
  if (loadRelaxedSys(&first.told) != 0) return;
  storeRelaxedSys(&first.waitedNs, waitedNs);
  storeRelaxedSys(&first.told, static_cast<uint64_t>(static_cast<uint32_t>(peer)) << 32 | (line & 0xffffffu) << 8 |
                                   static_cast<uint32_t>(error));
  // Behind the rest. A flag that the host has set meanwhile means the same to everybody.
  if (loadRelaxedSys(&first.flag) != 0) return;
  fenceSys();
  for (uint32_t other = 1; other < AbortPage::count; ++other) storeRelaxedSys(&page->lines[other].flag, 2);
  // The host looks at this one, and may clear all of them then.
  fenceSys();
  storeRelaxedSys(&first.flag, 2);
}

}  // namespace detail

// The guard of a loop that waits:
//
//   Patience patience(page, DeviceError::Signal, peer, maxSpinCount);
//   while (!isThere()) {
//     if (patience.isOver()) return patience.error();
//   }
//
// It is over after `maxSpinCount` looks (negative: any number), after the time that the page names, or when the page's
// flag is set. The first looks cost one addition each; then the clock is read now and then, and the page rarely.
class Patience {
 public:
  // The page may be null: then it is the process's.
  MSCCLPP_DEVICE_INLINE Patience(AbortPage* page, int error, int peer, int64_t maxSpinCount)
      : page_(page),
        begunNs_(0),
        looks_(0),
        maxLooks_(static_cast<uint64_t>(maxSpinCount)),
        lastPage_(0),
        cyclesPerPage_(0),
        error_(error),
        peer_(peer) {}

  // After each look in vain: whether to give up. The host knows by then.
  MSCCLPP_DEVICE_INLINE bool isOver() {
    ++looks_;
    // A negative bound is above all numbers of looks.
    const bool isSpent = looks_ >= maxLooks_;
    if (!isSpent && (static_cast<uint32_t>(looks_) & (detail::looksPerClock - 1)) != 0) return false;
    return isOverNow(isSpent);
  }

  // What was waited for in vain.
  MSCCLPP_DEVICE_INLINE int error() const { return error_; }

 private:
  MSCCLPP_DEVICE_INLINE bool isOverNow(bool isSpent) {
    if (!isSpent) {
      const uint32_t now = detail::cycles();
      if (cyclesPerPage_ == 0) {
        lastPage_ = now;
        cyclesPerPage_ = detail::cyclesPerPageFirst;
      }
      if (now - lastPage_ < cyclesPerPage_) return false;
      lastPage_ = now;
      if (cyclesPerPage_ < detail::cyclesPerPageMost) cyclesPerPage_ *= 2;
    }
    // The wall clock begins to count with the first look at it, some microseconds late.
    const uint64_t nowNs = detail::nanoseconds();
    if (begunNs_ == 0) begunNs_ = nowNs;
    const uint64_t waitedNs = nowNs - begunNs_;
    if (!isSpent) {
      uint64_t mostNs = 0;
      if (AbortPage* page = detail::pageOf(page_)) {
        // Who has set the flag has said why; this wait only ends.
        uint64_t flag;
        detail::loadRelaxedSys2(&page->lines[detail::warpNumber() % AbortPage::count].flag, flag, mostNs);
        if (flag != 0) return true;
      }
      if (waitedNs < (mostNs == 0 ? detail::spinDefaultNs : mostNs)) return false;
    }
    detail::report(page_, error_, peer_, 0, waitedNs);
    return true;
  }

  AbortPage* page_;
  uint64_t begunNs_;
  uint64_t looks_;
  uint64_t maxLooks_;
  uint32_t lastPage_;
  uint32_t cyclesPerPage_;
  int error_;
  int peer_;
};

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_ABORT_DEVICE_HPP_
