// Bulk copies between global memory (also a peer's) and shared memory: one thread starts them, and a unit of the
// multiprocessor moves the bytes. From sm_90 on; on older devices the calling thread copies by itself.
//
//   __shared__ mscclpp::BulkBarrier arrived;
//   extern __shared__ __align__(128) char tile[];
//   if (threadIdx.x == 0) arrived.init();
//   __syncthreads();
//   if (threadIdx.x == 0) mscclpp::bulkLoad(tile, src, bytes, arrived);
//   arrived.wait(0);                                   // all threads; then they may read and write the tile
//   mscclpp::bulkFence();                              // all threads, after they wrote the tile
//   __syncthreads();
//   if (threadIdx.x == 0) { mscclpp::bulkStore(dst, tile, bytes); mscclpp::bulkCommit(); mscclpp::bulkWait(); }
//
// Addresses and sizes are multiples of 16; a size is less than 1 MiB. Signal a peer after `bulkWait`, from the same
// thread.
#ifndef MSCCLPP_BULK_DEVICE_HPP_
#define MSCCLPP_BULK_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/copy_device.hpp>
#include <mscclpp/device.hpp>

#if defined(MSCCLPP_DEVICE_CUDA)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Bulk copies are done by the device, not by the calling thread.
#define MSCCLPP_BULK_NATIVE 1
#endif

namespace mscclpp {
namespace detail {

MSCCLPP_DEVICE_INLINE uint32_t sharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace detail

// Counts the bytes of loads, in shared memory. Each round has one or several loads; rounds are numbered from 0.
struct BulkBarrier {
  // Called by one thread before all others use it.
  MSCCLPP_DEVICE_INLINE void init() {
#if defined(MSCCLPP_BULK_NATIVE)
    asm volatile("mbarrier.init.shared.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(
                     detail::sharedAddress(&word_))
                 : "memory");
#else
    word_ = 0;
#endif
  }

  // Waits until all bytes of this round have arrived; called by any thread. Returns 0 or the error.
  //
  // Wait for each round before the next one starts.
  MSCCLPP_DEVICE_INLINE int wait(uint32_t round, int64_t maxSpinCount = -1) {
    SpinGuard guard(nullptr, DeviceError::Bulk, -1, maxSpinCount);
    while (!poll(round)) {
      if (guard.shouldStop()) return guard.error();
    }
    return DeviceError::None;
  }

  // Whether all bytes of this round have arrived.
  MSCCLPP_DEVICE_INLINE bool poll(uint32_t round) {
#if defined(MSCCLPP_BULK_NATIVE)
    uint32_t hasArrived;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(hasArrived)
        : "r"(detail::sharedAddress(&word_)), "r"(round & 1)
        : "memory");
    return hasArrived != 0;
#else
    const unsigned long long rounds = *const_cast<volatile unsigned long long*>(&word_);
    __threadfence_block();
    return rounds > round;
#endif
  }

  // Begins a round that ends when so many bytes have arrived; called by the thread that starts its loads.
  MSCCLPP_DEVICE_INLINE void expect(uint32_t bytes) {
#if defined(MSCCLPP_BULK_NATIVE)
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(detail::sharedAddress(&word_)), "r"(bytes)
                 : "memory");
#else
    static_cast<void>(bytes);
    __threadfence_block();
    *const_cast<volatile unsigned long long*>(&word_) = word_ + 1;
#endif
  }

  unsigned long long word_;
};

// Starts a copy from global to shared memory, as part of a round that `expect` begins.
MSCCLPP_DEVICE_INLINE void bulkLoadPart(void* shared, const void* global, uint32_t bytes, BulkBarrier& barrier) {
#if defined(MSCCLPP_BULK_NATIVE)
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   detail::sharedAddress(shared)),
               "l"(detail::globalAddress(global)), "r"(bytes), "r"(detail::sharedAddress(&barrier.word_))
               : "memory");
#else
  static_cast<void>(barrier);
  copy<16, false>(shared, global, bytes, 0, 1);
#endif
}

// Starts a copy from global to shared memory: a round of its own.
MSCCLPP_DEVICE_INLINE void bulkLoad(void* shared, const void* global, uint32_t bytes, BulkBarrier& barrier) {
#if defined(MSCCLPP_BULK_NATIVE)
  barrier.expect(bytes);
  bulkLoadPart(shared, global, bytes, barrier);
#else
  bulkLoadPart(shared, global, bytes, barrier);
  barrier.expect(bytes);
#endif
}

// Makes this thread's writes to shared memory visible to bulk stores that start after a barrier.
MSCCLPP_DEVICE_INLINE void bulkFence() {
#if defined(MSCCLPP_BULK_NATIVE)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#else
  __threadfence_block();
#endif
}

// Starts a copy from shared to global memory.
MSCCLPP_DEVICE_INLINE void bulkStore(void* global, const void* shared, uint32_t bytes) {
#if defined(MSCCLPP_BULK_NATIVE)
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(detail::globalAddress(global)),
               "r"(detail::sharedAddress(shared)), "r"(bytes)
               : "memory");
#else
  copy<16, false>(global, shared, bytes, 0, 1);
#endif
}

// Makes a group of the stores that this thread has started since the last call.
MSCCLPP_DEVICE_INLINE void bulkCommit() {
#if defined(MSCCLPP_BULK_NATIVE)
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
#endif
}

// Waits until at most so many of this thread's groups have not read shared memory, which may then be written again.
template <int Pending = 0>
MSCCLPP_DEVICE_INLINE void bulkWaitRead() {
#if defined(MSCCLPP_BULK_NATIVE)
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
#endif
}

// Waits until at most so many of this thread's groups have not written global memory. The written data are ordered
// before all later accesses of this thread, also before its signals.
template <int Pending = 0>
MSCCLPP_DEVICE_INLINE void bulkWait() {
#if defined(MSCCLPP_BULK_NATIVE)
  asm volatile("cp.async.bulk.wait_group %0;\n\tfence.proxy.async;" ::"n"(Pending) : "memory");
#endif
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_BULK_DEVICE_HPP_
