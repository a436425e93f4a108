// What the device headers use of CUDA, for a compiler that knows nothing of it. A block is a thread.
#pragma once

#define __device__
#define __host__
#define __forceinline__ inline

struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct Place {
  unsigned x, y, z;
};

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline constexpr Place threadIdx{0, 0, 0};
inline void __syncthreads() {}
inline int __syncthreads_or(int value) { return value; }
