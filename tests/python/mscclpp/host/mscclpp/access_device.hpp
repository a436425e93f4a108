// The accesses of the device headers, by threads of a host: this file stands in the place of the one with PTX in it.
#ifndef MSCCLPP_ACCESS_DEVICE_HPP_
#define MSCCLPP_ACCESS_DEVICE_HPP_

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mscclpp/device.hpp>
#include <thread>

namespace mscclpp {
namespace detail {

template <class T>
std::atomic_ref<T> atomic(const T* word) {
  return std::atomic_ref<T>(*const_cast<T*>(word));
}

// There are more threads than cores, and a waiting thread yields to the others.
inline void pause() {
  static thread_local unsigned looks = 0;
  if ((++looks & 63) == 0) std::this_thread::yield();
}

template <class T>
T look(const T* word) {
  pause();
  return atomic(word).load();
}

inline uint64_t loadAcquireSys(const uint64_t* word) { return look(word); }
inline uint64_t loadRelaxedSys(const uint64_t* word) { return look(word); }
inline void loadRelaxedSys2(const uint64_t* words, uint64_t& first, uint64_t& second) {
  first = look(words);
  second = look(words + 1);
}
inline uint64_t loadAcquireGpu(const uint64_t* word) { return look(word); }
inline uint64_t loadRelaxedGpu(const uint64_t* word) { return look(word); }
inline int loadRelaxedGpu(const int* word) { return look(word); }
inline uint32_t loadAcquireSys(const uint32_t* word) { return look(word); }
inline uint32_t loadRelaxedGpu(const uint32_t* word) { return look(word); }
inline void storeRelaxedSys(uint64_t* word, uint64_t value) { atomic(word).store(value); }
inline void storeReleaseGpu(uint64_t* word, uint64_t value) { atomic(word).store(value); }
inline void storeReleaseGpu(int* word, int value) { atomic(word).store(value); }
inline void storeReleaseSys(uint32_t* word, uint32_t value) { atomic(word).store(value); }
inline void storeRelaxedGpu(uint32_t* word, uint32_t value) { atomic(word).store(value); }
inline void addReleaseSys(uint64_t* word, uint64_t value) { atomic(word).fetch_add(value); }
inline void addRelaxedSys(uint64_t* word, uint64_t value) { atomic(word).fetch_add(value); }
inline void addReleaseGpu(uint64_t* word, uint64_t value) { atomic(word).fetch_add(value); }
inline void addReleaseGpu(int* word, int value) { atomic(word).fetch_add(value); }
inline uint64_t fetchAddRelaxedGpu(uint64_t* word, uint64_t value) { return atomic(word).fetch_add(value); }
inline uint64_t fetchAddAcqRelGpu(uint64_t* word, uint64_t value) { return atomic(word).fetch_add(value); }

template <class T>
T swapIf(T* word, T expected, T value) {
  atomic(word).compare_exchange_strong(expected, value);
  return expected;
}
inline uint64_t compareSwapAcqRelGpu(uint64_t* word, uint64_t expected, uint64_t value) { return swapIf(word, expected, value); }
inline int compareSwapAcquireGpu(int* word, int expected, int value) { return swapIf(word, expected, value); }

// The word with the lap comes last, so that nobody sees half a trigger.
inline void storeRelaxedSys16(void* target, uint64_t low, uint64_t high) {
  uint64_t* words = static_cast<uint64_t*>(target);
  atomic(words).store(low);
  atomic(words + 1).store(high);
}

inline uint64_t both(uint32_t low, uint32_t high) { return low | static_cast<uint64_t>(high) << 32; }
inline void storePacket(void* target, uint2 value) {
  atomic(static_cast<uint64_t*>(target)).store(both(value.x, value.y));
}
inline void storePacket(void* target, uint4 value) {
  storePacket(target, make_uint2(value.x, value.y));
  storePacket(static_cast<char*>(target) + 8, make_uint2(value.z, value.w));
}
inline void loadPacket(const void* source, uint2& value) {
  const uint64_t word = look(static_cast<const uint64_t*>(source));
  value = make_uint2(static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32));
}
inline void loadPacket(const void* source, uint4& value) {
  uint2 first, second;
  loadPacket(source, first);
  loadPacket(static_cast<const char*>(source) + 8, second);
  value = make_uint4(first.x, first.y, second.x, second.y);
}

template <int Width>
struct Value;
template <>
struct Value<1> {
  using Type = unsigned char;
};
template <>
struct Value<4> {
  using Type = uint32_t;
};
template <>
struct Value<8> {
  using Type = uint64_t;
};
template <>
struct Value<16> {
  using Type = uint4;
};

// As strict as a device: an address that is not aligned ends the program.
template <bool IsGlobal, int Width>
struct Vector {
  typename Value<Width>::Type value;
  void load(const char* at) {
    check(at);
    std::memcpy(&value, at, Width);
  }
  void store(char* at) const {
    check(at);
    std::memcpy(at, &value, Width);
  }
  static void check(const char* at) {
    if (reinterpret_cast<uintptr_t>(at) % Width == 0) return;
    std::puts("an access is not aligned");
    std::abort();
  }
};

inline void fenceSys() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// Every thread is a warp of its own.
inline bool isFirstActiveLane() { return true; }
inline uint32_t warpNumber() { return static_cast<uint32_t>(std::hash<std::thread::id>()(std::this_thread::get_id())); }

inline uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}
inline uint32_t cycles() { return static_cast<uint32_t>(nanoseconds()); }

}  // namespace detail
}  // namespace mscclpp

#endif  // MSCCLPP_ACCESS_DEVICE_HPP_
