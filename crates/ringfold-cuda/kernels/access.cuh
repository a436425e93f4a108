// Accesses to memory that other ranks read or write at the same time.
#pragma once

namespace ringfold {

using u32 = unsigned int;
using u64 = unsigned long long;

// Orders all earlier writes of this block before the store.
__device__ __forceinline__ void store_release(u32* at, u32 value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}

__device__ __forceinline__ u32 load_acquire(const u32* at) {
    u32 value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

// Sixteen bytes at once, or at least eight.
__device__ __forceinline__ void store_volatile(uint4* at, uint4 value) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x), "r"(value.y), "r"(value.z),
                 "r"(value.w)
                 : "memory");
}

__device__ __forceinline__ uint4 load_volatile(const uint4* at) {
    uint4 value;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(at)
                 : "memory");
    return value;
}

// A plain store to global memory, which the compiler cannot infer for pointers loaded from shared memory.
__device__ __forceinline__ void store_global(uint4* at, uint4 value) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
}

}  // namespace ringfold
