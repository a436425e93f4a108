// Copies by many threads, with several vector accesses in flight. Copies to and from packets are in
// packet_device.hpp, which this header includes.
#ifndef MSCCLPP_COPY_DEVICE_HPP_
#define MSCCLPP_COPY_DEVICE_HPP_

#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>
#include <mscclpp/packet_device.hpp>

#if defined(MSCCLPP_DEVICE_CUDA)

namespace mscclpp {
namespace detail {

// Copies `count` vectors, aligned in source and destination. Each thread has four in flight.
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
  // The remaining vectors of this thread, fewer than four.
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

// Copies bytes at any addresses, by vectors of this width or the largest one that both addresses allow.
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
    // Head and tail are less than two vectors together.
    for (uint64_t i = threadId; i < head + (bytes - tailAt); i += numThreads) {
      const uint64_t at = i < head ? i : tailAt + (i - head);
      Vector<IsGlobal, 1> byte;
      byte.load(src + at);
      byte.store(dst + at);
    }
  }
}

}  // namespace detail

// Copies bytes; called by threads 0 to numThreads - 1, which share the work. The ranges must not overlap.
//
// `Alignment` is the width of the accesses: 4, 8 or 16. Any address and size is allowed; unaligned parts use smaller
// accesses. Without `CopyRemainder` both addresses must be aligned, and the bytes after the last whole vector are not
// copied.
template <int Alignment = 16, bool CopyRemainder = true>
MSCCLPP_DEVICE_INLINE void copy(void* dst, const void* src, uint64_t bytes, uint32_t threadId, uint32_t numThreads) {
  detail::copyBytes<false, Alignment, CopyRemainder>(static_cast<char*>(dst), static_cast<const char*>(src), bytes,
                                                     threadId, numThreads);
}

}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_COPY_DEVICE_HPP_
