// Copies by many threads: whole vectors, several of them on the way at a time.
#ifndef MSCCLPP_COPY_DEVICE_HPP_
#define MSCCLPP_COPY_DEVICE_HPP_

#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>

#if defined(MSCCLPP_DEVICE_CUDA)

namespace mscclpp {
namespace detail {

// So many vectors, which are aligned on both sides. A thread has four of them on the way.
template <bool IsGlobal, int Width>
MSCCLPP_DEVICE_INLINE void copyVectors(char* dst, const char* src, uint64_t count, uint32_t threadId,
                                       uint32_t numThreads) {
  constexpr int flight = 4;
  const uint64_t stride = numThreads;
  uint64_t i = threadId;
  for (; i + (flight - 1) * stride < count; i += flight * stride) {
    Vector<IsGlobal, Width> vectors[flight];
#pragma unroll
    for (int k = 0; k < flight; ++k) vectors[k].load(src + (i + k * stride) * Width);
#pragma unroll
    for (int k = 0; k < flight; ++k) vectors[k].store(dst + (i + k * stride) * Width);
  }
  // What is left for this thread are fewer than that.
  Vector<IsGlobal, Width> vectors[flight - 1];
#pragma unroll
  for (int k = 0; k < flight - 1; ++k) {
    if (i + k * stride < count) vectors[k].load(src + (i + k * stride) * Width);
  }
#pragma unroll
  for (int k = 0; k < flight - 1; ++k) {
    if (i + k * stride < count) vectors[k].store(dst + (i + k * stride) * Width);
  }
}

// Bytes at any addresses, by vectors of this width or the largest one that fits both addresses.
template <bool IsGlobal, int Width, bool CopyRemainder>
MSCCLPP_DEVICE_INLINE void copyBytes(char* dst, const char* src, uint64_t bytes, uint32_t threadId,
                                     uint32_t numThreads) {
  static_assert(Width == 4 || Width == 8 || Width == 16, "the alignment is 4, 8 or 16");
  if constexpr (!CopyRemainder) {
    copyVectors<IsGlobal, Width>(dst, src, bytes / Width, threadId, numThreads);
  } else {
    const uint64_t to = reinterpret_cast<uint64_t>(dst), from = reinterpret_cast<uint64_t>(src);
    if (((to ^ from) & (Width - 1)) != 0) {
      if constexpr (Width > 4) {
        copyBytes<IsGlobal, Width / 2, true>(dst, src, bytes, threadId, numThreads);
      } else {
        copyVectors<IsGlobal, 1>(dst, src, bytes, threadId, numThreads);
      }
      return;
    }
    uint64_t head = (Width - (to & (Width - 1))) & (Width - 1);
    if (head > bytes) head = bytes;
    const uint64_t body = (bytes - head) / Width;
    const uint64_t tailAt = head + body * Width;
    copyVectors<IsGlobal, Width>(dst + head, src + head, body, threadId, numThreads);
    // Together these are fewer than two vectors.
    for (uint64_t i = threadId; i < head + (bytes - tailAt); i += numThreads) {
      const uint64_t at = i < head ? i : tailAt + (i - head);
      Vector<IsGlobal, 1> byte;
      byte.load(src + at);
      byte.store(dst + at);
    }
  }
}

}  // namespace detail

// Copies bytes; called by threads 0 to numThreads - 1, which share the work. The memories must not overlap.
//
// `Alignment` is the width of the accesses: 4, 8 or 16. Addresses and sizes may be any: what is not aligned is copied
// by smaller pieces. Without `CopyRemainder` both addresses are aligned, and what is left behind the last whole vector
// is not copied.
template <int Alignment = 16, bool CopyRemainder = true>
MSCCLPP_DEVICE_INLINE void copy(void* dst, const void* src, uint64_t bytes, uint32_t threadId, uint32_t numThreads) {
  detail::copyBytes<false, Alignment, CopyRemainder>(static_cast<char*>(dst), static_cast<const char*>(src), bytes,
                                                     threadId, numThreads);
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_COPY_DEVICE_HPP_
