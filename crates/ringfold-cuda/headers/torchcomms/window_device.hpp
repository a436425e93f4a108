// Windows of torchcomms in kernels: memory of each rank that kernels of the other ranks read and write, and signals.
//
//   extern "C" __global__ void exchange(torchcomms::DeviceWindow window, int peer, const void* source, size_t bytes) {
//     window.put(peer, 0, source, bytes, threadIdx.x, blockDim.x);
//     __syncthreads();
//     if (threadIdx.x == 0) {
//       window.signal(peer);
//       window.waitSignal(peer);
//     }
//     __syncthreads();
//   }
#ifndef TORCHCOMMS_WINDOW_DEVICE_HPP_
#define TORCHCOMMS_WINDOW_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/copy_device.hpp>
#include <mscclpp/device.hpp>

namespace torchcomms {

// The numbers of signals between the owner of the memory and one other rank. They wrap around.
struct WindowSignals {
  uint32_t arrived;  // from the other rank, which writes it
  uint32_t sent;     // to the other rank
  uint32_t taken;    // by waits of the owner
  uint32_t padding;
};
static_assert(sizeof(WindowSignals) == 16, "the host lays out this memory");

// A rank's side of a window, mapped in this process.
struct WindowPeer {
  void* memory;
  uint64_t bytes;
  WindowSignals* signals;  // one for each rank
};
static_assert(sizeof(WindowPeer) == 24, "the host lays out this memory");

// A window, from `TorchCommWindow.get_device_window()`. A plain value that may be copied; all state is behind pointers.
//
// Host calls and kernels count the same signals, so both may be used on a window. For each rank, one thread at a time
// may signal it, and one may wait for it: of all blocks, kernels and host calls. Order them by barriers or by a stream.
struct DeviceWindow {
#if defined(MSCCLPP_DEVICE_CUDA)
  MSCCLPP_DEVICE_INLINE int rank() const { return rank_; }
  MSCCLPP_DEVICE_INLINE int size() const { return size_; }

  // A rank's memory; null if it has none.
  MSCCLPP_DEVICE_INLINE void* memory(int rank) const { return peers_[rank].memory; }
  // Its size.
  MSCCLPP_DEVICE_INLINE uint64_t bytes(int rank) const { return peers_[rank].bytes; }

  // Copies bytes into a rank's memory; called by threads 0 to numThreads - 1, which share the work. The source may be
  // in any memory, and must not overlap the target.
  //
  // Outside of the memory nothing is copied, the result is false, and the communicator fails.
  MSCCLPP_DEVICE_INLINE bool put(int dstRank, uint64_t dstOffset, const void* source, uint64_t bytes, uint32_t threadId,
                                 uint32_t numThreads) const {
    if (!contains(dstRank, dstOffset, bytes)) return false;
    mscclpp::copy(static_cast<char*>(memory(dstRank)) + dstOffset, source, bytes, threadId, numThreads);
    return true;
  }

  // Copies bytes of a rank's memory, as `put` does.
  MSCCLPP_DEVICE_INLINE bool get(int srcRank, uint64_t srcOffset, void* target, uint64_t bytes, uint32_t threadId,
                                 uint32_t numThreads) const {
    if (!contains(srcRank, srcOffset, bytes)) return false;
    mscclpp::copy(target, static_cast<const char*>(memory(srcRank)) + srcOffset, bytes, threadId, numThreads);
    return true;
  }

  // Signals a rank; called by one thread. The signal arrives after all earlier writes of this thread, and after those
  // of other threads before a barrier that it has passed: call `__syncthreads()` after the puts of a block.
  MSCCLPP_DEVICE_INLINE bool signal(int dstRank) const {
    if (!isRank(dstRank)) return fail(dstRank);
    uint32_t* sent = &peers_[rank_].signals[dstRank].sent;
    const uint32_t number = mscclpp::detail::loadRelaxedGpu(sent) + 1;
    mscclpp::detail::storeRelaxedGpu(sent, number);
    mscclpp::detail::storeReleaseSys(&peers_[dstRank].signals[rank_].arrived, number);
    return true;
  }

  // Waits for a rank's next signal, and takes it; called by one thread. The rank's writes before the signal are visible
  // then, to other threads after a barrier.
  //
  // False if the communicator has failed: the rank died, or did not signal within the timeout of the communicator, or
  // within `limitNs` if that is not 0. The next call on the host raises the cause.
  MSCCLPP_DEVICE_INLINE bool waitSignal(int srcRank, uint64_t limitNs = 0) const {
    if (!isRank(srcRank)) return fail(srcRank);
    WindowSignals* own = &peers_[rank_].signals[srcRank];
    const uint32_t number = mscclpp::detail::loadRelaxedGpu(&own->taken) + 1;
    mscclpp::SpinGuard guard(abort_, mscclpp::DeviceError::Signal, srcRank, -1, limitNs);
    while (static_cast<int32_t>(mscclpp::detail::loadAcquireSys(&own->arrived) - number) < 0) {
      if (guard.shouldStop()) return false;
    }
    mscclpp::detail::storeRelaxedGpu(&own->taken, number);
    return true;
  }

 private:
  MSCCLPP_DEVICE_INLINE bool isRank(int rank) const { return rank >= 0 && rank < size_; }

  // Whether bytes are in a rank's memory. If they are not, the host is told.
  MSCCLPP_DEVICE_INLINE bool contains(int rank, uint64_t offset, uint64_t bytes) const {
    if (!isRank(rank)) return fail(rank);
    const uint64_t size = peers_[rank].bytes;
    return (offset <= size && bytes <= size - offset) || fail(rank);
  }

  MSCCLPP_DEVICE_INLINE bool fail(int rank) const {
    mscclpp::detail::report(abort_, mscclpp::DeviceError::Bounds, rank, 0, 0);
    return false;
  }

 public:
#endif

  const WindowPeer* peers_;
  mscclpp::AbortPage* abort_;
  int32_t rank_;
  int32_t size_;
};
static_assert(sizeof(DeviceWindow) == 24, "the host lays out this handle");

}  // namespace torchcomms

#endif  // TORCHCOMMS_WINDOW_DEVICE_HPP_
