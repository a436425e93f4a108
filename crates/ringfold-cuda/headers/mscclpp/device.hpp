// Common definitions: the compiler in use and the integer types.
//
// nvcc and NVRTC see everything. A plain C++ compiler sees the types only, so that a host program can lay out handles.
#ifndef MSCCLPP_DEVICE_HPP_
#define MSCCLPP_DEVICE_HPP_

#if defined(__CUDACC_RTC__)
// NVRTC has no standard headers. These are the types of CUDA's own library; repeating a declaration is legal.
using int8_t = signed char;
using int16_t = signed short;
using int32_t = signed int;
using int64_t = signed long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
using intptr_t = int64_t;
using uintptr_t = uint64_t;
#else
#include <cstddef>
#include <cstdint>
#endif

#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cuda_runtime.h>
#endif

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
// Device functions are declared.
#define MSCCLPP_DEVICE_CUDA 1
#define MSCCLPP_DEVICE __device__
#define MSCCLPP_DEVICE_INLINE __forceinline__ __device__
#define MSCCLPP_HOST_DEVICE_INLINE __forceinline__ __host__ __device__
#else
#define MSCCLPP_HOST_DEVICE_INLINE inline
#endif

#if defined(__CUDA_ARCH__)
// This pass compiles for a device.
#define MSCCLPP_DEVICE_COMPILE 1
#else
#define MSCCLPP_HOST_COMPILE 1
#endif

#endif  // MSCCLPP_DEVICE_HPP_
