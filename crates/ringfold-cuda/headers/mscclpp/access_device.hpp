// All memory accesses whose order or width matters, in PTX.
//
// The names contain order and scope: `Sys` includes hosts and other devices, `Gpu` the threads of this device. All are
// volatile and clobber memory, so that the compiler does not move them. Addresses must be in global memory (device
// memory, peer memory or mapped host memory), except for the plain accesses that say otherwise.
#ifndef MSCCLPP_ACCESS_DEVICE_HPP_
#define MSCCLPP_ACCESS_DEVICE_HPP_

#include <mscclpp/device.hpp>

#if defined(MSCCLPP_DEVICE_CUDA)

namespace mscclpp {
namespace detail {

MSCCLPP_DEVICE_INLINE unsigned long long globalAddress(const volatile void* pointer) {
  return static_cast<unsigned long long>(__cvta_generic_to_global(const_cast<const void*>(pointer)));
}

// Accesses to one word: `Type` is its type, `Register` that of its register, `width` and `constraint` those in PTX.
#define MSCCLPP_DETAIL_LOAD(name, order, Type, Register, width, constraint)                                            \
  MSCCLPP_DEVICE_INLINE Type name(const Type* word) {                                                                  \
    Register value;                                                                                                    \
    asm volatile("ld." order ".global." width " %0, [%1];" : "=" constraint(value) : "l"(globalAddress(word)) : "memory");\
    return value;                                                                                                      \
  }
MSCCLPP_DETAIL_LOAD(loadAcquireSys, "acquire.sys", uint64_t, unsigned long long, "u64", "l")
MSCCLPP_DETAIL_LOAD(loadRelaxedSys, "relaxed.sys", uint64_t, unsigned long long, "u64", "l")
MSCCLPP_DETAIL_LOAD(loadAcquireGpu, "acquire.gpu", uint64_t, unsigned long long, "u64", "l")
MSCCLPP_DETAIL_LOAD(loadRelaxedGpu, "relaxed.gpu", uint64_t, unsigned long long, "u64", "l")
MSCCLPP_DETAIL_LOAD(loadRelaxedGpu, "relaxed.gpu", int, int, "s32", "r")
MSCCLPP_DETAIL_LOAD(loadAcquireSys, "acquire.sys", uint32_t, uint32_t, "u32", "r")
MSCCLPP_DETAIL_LOAD(loadRelaxedGpu, "relaxed.gpu", uint32_t, uint32_t, "u32", "r")
#undef MSCCLPP_DETAIL_LOAD

// Reads two adjacent words, aligned to 16 bytes, at once. Each word is read atomically.
MSCCLPP_DEVICE_INLINE void loadRelaxedSys2(const uint64_t* words, uint64_t& first, uint64_t& second) {
  unsigned long long one, two;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(one), "=l"(two)
               : "l"(globalAddress(words))
               : "memory");
  first = one;
  second = two;
}

// Release is cumulative: it also covers writes of other threads before a barrier that this thread has passed.
#define MSCCLPP_DETAIL_STORE(name, operation, Type, Register, constraint)                                              \
  MSCCLPP_DEVICE_INLINE void name(Type* word, Type value) {                                                            \
    asm volatile(operation " [%0], %1;" ::"l"(globalAddress(word)), constraint(static_cast<Register>(value)) : "memory");\
  }
MSCCLPP_DETAIL_STORE(storeRelaxedSys, "st.relaxed.sys.global.u64", uint64_t, unsigned long long, "l")
MSCCLPP_DETAIL_STORE(storeReleaseGpu, "st.release.gpu.global.u64", uint64_t, unsigned long long, "l")
MSCCLPP_DETAIL_STORE(storeReleaseGpu, "st.release.gpu.global.s32", int, int, "r")
MSCCLPP_DETAIL_STORE(storeReleaseSys, "st.release.sys.global.u32", uint32_t, uint32_t, "r")
MSCCLPP_DETAIL_STORE(storeRelaxedGpu, "st.relaxed.gpu.global.u32", uint32_t, uint32_t, "r")
MSCCLPP_DETAIL_STORE(addReleaseSys, "red.release.sys.global.add.u64", uint64_t, unsigned long long, "l")
MSCCLPP_DETAIL_STORE(addRelaxedSys, "red.relaxed.sys.global.add.u64", uint64_t, unsigned long long, "l")
MSCCLPP_DETAIL_STORE(addReleaseGpu, "red.release.gpu.global.add.u64", uint64_t, unsigned long long, "l")
MSCCLPP_DETAIL_STORE(addReleaseGpu, "red.release.gpu.global.add.s32", int, int, "r")
#undef MSCCLPP_DETAIL_STORE

#define MSCCLPP_DETAIL_FETCH_ADD(name, order)                                                                          \
  MSCCLPP_DEVICE_INLINE uint64_t name(uint64_t* word, uint64_t value) {                                                \
    unsigned long long before;                                                                                         \
    asm volatile("atom." order ".gpu.global.add.u64 %0, [%1], %2;"                                                     \
                 : "=l"(before)                                                                                        \
                 : "l"(globalAddress(word)), "l"(static_cast<unsigned long long>(value))                               \
                 : "memory");                                                                                          \
    return before;                                                                                                     \
  }
MSCCLPP_DETAIL_FETCH_ADD(fetchAddRelaxedGpu, "relaxed")
MSCCLPP_DETAIL_FETCH_ADD(fetchAddAcqRelGpu, "acq_rel")
#undef MSCCLPP_DETAIL_FETCH_ADD

// These return the previous value; the word was changed if that equals `expected`.
MSCCLPP_DEVICE_INLINE uint64_t compareSwapAcqRelGpu(uint64_t* word, uint64_t expected, uint64_t value) {
  unsigned long long before;
  asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(globalAddress(word)), "l"(static_cast<unsigned long long>(expected)),
                 "l"(static_cast<unsigned long long>(value))
               : "memory");
  return before;
}

MSCCLPP_DEVICE_INLINE int compareSwapAcquireGpu(int* word, int expected, int value) {
  int before;
  asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;"
               : "=r"(before)
               : "l"(globalAddress(word)), "r"(expected), "r"(value)
               : "memory");
  return before;
}

MSCCLPP_DEVICE_INLINE void fenceSys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Stores sixteen aligned bytes at once. After a fence it is a release.
//
// Since PTX 8.3 a 128-bit store is a single access in the memory model.
// Before, a vector store is formally a set of scalar accesses, but the hardware issues an aligned one as a single
// instruction and a single bus write, which all such protocols rely on.
MSCCLPP_DEVICE_INLINE void storeRelaxedSys16(void* target, uint64_t low, uint64_t high) {
  const unsigned long long first = low, second = high;
#if defined(__CUDACC_VER_MAJOR__) && (__CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 3))
  asm volatile(
      "{\n\t"
      ".reg .b128 both;\n\t"
      "mov.b128 both, {%1, %2};\n\t"
      "st.relaxed.sys.global.b128 [%0], both;\n\t"
      "}" ::"l"(globalAddress(target)),
      "l"(first), "l"(second)
      : "memory");
#else
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(globalAddress(target)), "l"(first), "l"(second)
               : "memory");
#endif
}

// A packet: data and flag in one access. Each half of sixteen bytes has its own flag, so only eight bytes must arrive
// together.
MSCCLPP_DEVICE_INLINE void storePacket(void* target, uint4 value) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(globalAddress(target)), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}

MSCCLPP_DEVICE_INLINE void storePacket(void* target, uint2 value) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(globalAddress(target)), "r"(value.x), "r"(value.y)
               : "memory");
}

MSCCLPP_DEVICE_INLINE void loadPacket(const void* source, uint4& value) {
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(globalAddress(source))
               : "memory");
}

MSCCLPP_DEVICE_INLINE void loadPacket(const void* source, uint2& value) {
  asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "l"(globalAddress(source))
               : "memory");
}

// Plain accesses of 1, 4, 8 and 16 bytes. Global ones are slightly faster; the others also work for shared memory.
template <bool IsGlobal, int Width>
struct Vector;

#define MSCCLPP_DETAIL_VECTOR(isGlobal, space, width, type, suffix, constraint)                                     \
  template <>                                                                                                       \
  struct Vector<isGlobal, width> {                                                                                  \
    type value;                                                                                                     \
    MSCCLPP_DEVICE_INLINE void load(const char* at) {                                                               \
      asm volatile("ld" space suffix " %0, [%1];" : "=" constraint(value) : "l"(at) : "memory");                    \
    }                                                                                                               \
    MSCCLPP_DEVICE_INLINE void store(char* at) const {                                                              \
      asm volatile("st" space suffix " [%0], %1;" ::"l"(at), constraint(value) : "memory");                         \
    }                                                                                                               \
  };
MSCCLPP_DETAIL_VECTOR(true, ".global", 1, unsigned short, ".u8", "h")
MSCCLPP_DETAIL_VECTOR(true, ".global", 4, uint32_t, ".u32", "r")
MSCCLPP_DETAIL_VECTOR(true, ".global", 8, unsigned long long, ".u64", "l")
MSCCLPP_DETAIL_VECTOR(false, "", 1, unsigned short, ".u8", "h")
MSCCLPP_DETAIL_VECTOR(false, "", 4, uint32_t, ".u32", "r")
MSCCLPP_DETAIL_VECTOR(false, "", 8, unsigned long long, ".u64", "l")
#undef MSCCLPP_DETAIL_VECTOR

#define MSCCLPP_DETAIL_VECTOR16(isGlobal, space)                                                                    \
  template <>                                                                                                       \
  struct Vector<isGlobal, 16> {                                                                                     \
    uint4 value;                                                                                                    \
    MSCCLPP_DEVICE_INLINE void load(const char* at) {                                                               \
      asm volatile("ld" space ".v4.u32 {%0, %1, %2, %3}, [%4];"                                                     \
                   : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)                                     \
                   : "l"(at)                                                                                        \
                   : "memory");                                                                                     \
    }                                                                                                               \
    MSCCLPP_DEVICE_INLINE void store(char* at) const {                                                              \
      asm volatile("st" space ".v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x), "r"(value.y),              \
                   "r"(value.z), "r"(value.w)                                                                       \
                   : "memory");                                                                                     \
    }                                                                                                               \
  };
MSCCLPP_DETAIL_VECTOR16(true, ".global")
MSCCLPP_DETAIL_VECTOR16(false, "")
#undef MSCCLPP_DETAIL_VECTOR16

// Whether this is the first active thread of its warp.
MSCCLPP_DEVICE_INLINE bool isFirstActiveLane() {
  uint32_t before;
  asm volatile("mov.u32 %0, %%lanemask_lt;" : "=r"(before));
  return (__activemask() & before) == 0;
}

// A number that differs between most warps of a device.
MSCCLPP_DEVICE_INLINE uint32_t warpNumber() {
  uint32_t multiprocessor, warp;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  return multiprocessor + warp;
}

// The clock of this multiprocessor: cheap to read, wraps after seconds.
MSCCLPP_DEVICE_INLINE uint32_t cycles() {
  uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  return now;
}

// The wall clock in nanoseconds.
MSCCLPP_DEVICE_INLINE uint64_t nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  return now;
}

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_DEVICE_CUDA
#endif  // MSCCLPP_ACCESS_DEVICE_HPP_
