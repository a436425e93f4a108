// Atomic accesses with a memory order and a scope, for integers, floats and pointers of 4 or 8 bytes.
//
//   mscclpp::atomicStore(&ready, 1, mscclpp::memoryOrderRelease);
//   mscclpp::atomicFetchAdd<uint64_t, mscclpp::scopeDevice>(&count, 1, mscclpp::memoryOrderRelaxed);
//
// Any memory that the kernel can access is allowed. Most devices support only loads and stores of host memory, not the
// other operations. The values of `cuda::memory_order` and `cuda::thread_scope` are accepted, too.
#ifndef MSCCLPP_ATOMIC_DEVICE_HPP_
#define MSCCLPP_ATOMIC_DEVICE_HPP_

#include <mscclpp/device.hpp>

namespace mscclpp {

// Numbered as in the C++ library.
enum MemoryOrder : int {
  memoryOrderRelaxed = 0,
  memoryOrderAcquire = 2,
  memoryOrderRelease = 3,
  memoryOrderAcqRel = 4,
  memoryOrderSeqCst = 5,
};

// The threads between which an access is atomic and ordered, numbered as in CUDA's C++ library.
enum ThreadScope : int {
  scopeSystem = 0,  // all devices and hosts
  scopeDevice = 1,  // this device
  scopeBlock = 2,   // this block
};

#if defined(MSCCLPP_DEVICE_CUDA)
namespace detail {

// The bits of a value, and back.
template <typename To, typename From>
MSCCLPP_DEVICE_INLINE To bitsAs(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "the sizes differ");
  To to;
  memcpy(&to, &from, sizeof(To));
  return to;
}

template <int Bytes, int Scope>
struct AtomicWord;

// A read-modify-write operation in each order. Sequential consistency is a fence before the operation.
#define MSCCLPP_DETAIL_ATOMIC_ORDERS(scope, before, after, ...)                                                        \
  switch (order) {                                                                                                     \
    case memoryOrderRelaxed: asm volatile(before ".relaxed." scope after __VA_ARGS__); break;                          \
    case memoryOrderRelease: asm volatile(before ".release." scope after __VA_ARGS__); break;                          \
    case memoryOrderAcqRel: asm volatile(before ".acq_rel." scope after __VA_ARGS__); break;                           \
    case memoryOrderSeqCst: asm volatile("fence.sc." scope ";\n\t" before ".acq_rel." scope after __VA_ARGS__); break; \
    default: asm volatile(before ".acquire." scope after __VA_ARGS__); break;                                          \
  }

#define MSCCLPP_DETAIL_ATOMIC(Bytes, Scope, scope, Bits, bits, constraint, Real, real, realConstraint)                 \
  template <>                                                                                                          \
  struct AtomicWord<Bytes, Scope> {                                                                                    \
    using Word = Bits;                                                                                                 \
    using Float = Real;                                                                                                \
    static MSCCLPP_DEVICE_INLINE Word load(const void* at, int order) {                                                \
      Word value;                                                                                                      \
      if (order == memoryOrderRelaxed) {                                                                               \
        asm volatile("ld.relaxed." scope ".b" bits " %0, [%1];" : "=" constraint(value) : "l"(at) : "memory");         \
        return value;                                                                                                  \
      }                                                                                                                \
      if (order == memoryOrderSeqCst) asm volatile("fence.sc." scope ";" ::: "memory");                                \
      asm volatile("ld.acquire." scope ".b" bits " %0, [%1];" : "=" constraint(value) : "l"(at) : "memory");           \
      return value;                                                                                                    \
    }                                                                                                                  \
    static MSCCLPP_DEVICE_INLINE void store(void* at, Word value, int order) {                                         \
      if (order == memoryOrderSeqCst) asm volatile("fence.sc." scope ";" ::: "memory");                                \
      if (order == memoryOrderRelaxed || order == memoryOrderSeqCst) {                                                 \
        asm volatile("st.relaxed." scope ".b" bits " [%0], %1;" ::"l"(at), constraint(value) : "memory");              \
      } else {                                                                                                         \
        asm volatile("st.release." scope ".b" bits " [%0], %1;" ::"l"(at), constraint(value) : "memory");              \
      }                                                                                                                \
    }                                                                                                                  \
    static MSCCLPP_DEVICE_INLINE Word add(void* at, Word value, int order) {                                           \
      Word before;                                                                                                     \
      MSCCLPP_DETAIL_ATOMIC_ORDERS(scope, "atom", ".add.u" bits " %0, [%1], %2;"                                       \
                                   : "=" constraint(before) : "l"(at), constraint(value) : "memory")                   \
      return before;                                                                                                   \
    }                                                                                                                  \
    static MSCCLPP_DEVICE_INLINE Float add(void* at, Float value, int order) {                                         \
      Float before;                                                                                                    \
      MSCCLPP_DETAIL_ATOMIC_ORDERS(scope, "atom", ".add." real " %0, [%1], %2;"                                        \
                                   : "=" realConstraint(before) : "l"(at), realConstraint(value) : "memory")           \
      return before;                                                                                                   \
    }                                                                                                                  \
    static MSCCLPP_DEVICE_INLINE Word exchange(void* at, Word value, int order) {                                      \
      Word before;                                                                                                     \
      MSCCLPP_DETAIL_ATOMIC_ORDERS(scope, "atom", ".exch.b" bits " %0, [%1], %2;"                                      \
                                   : "=" constraint(before) : "l"(at), constraint(value) : "memory")                   \
      return before;                                                                                                   \
    }                                                                                                                  \
    static MSCCLPP_DEVICE_INLINE Word compareSwap(void* at, Word expected, Word value, int order) {                    \
      Word before;                                                                                                     \
      MSCCLPP_DETAIL_ATOMIC_ORDERS(scope, "atom", ".cas.b" bits " %0, [%1], %2, %3;"                                   \
                                   : "=" constraint(before) : "l"(at), constraint(expected), constraint(value)         \
                                   : "memory")                                                                         \
      return before;                                                                                                   \
    }                                                                                                                  \
  };
#define MSCCLPP_DETAIL_ATOMIC_SCOPES(...)                       \
  MSCCLPP_DETAIL_ATOMIC_OF(scopeSystem, "sys", __VA_ARGS__)     \
  MSCCLPP_DETAIL_ATOMIC_OF(scopeDevice, "gpu", __VA_ARGS__)     \
  MSCCLPP_DETAIL_ATOMIC_OF(scopeBlock, "cta", __VA_ARGS__)
#define MSCCLPP_DETAIL_ATOMIC_OF(Scope, scope, Bytes, ...) MSCCLPP_DETAIL_ATOMIC(Bytes, Scope, scope, __VA_ARGS__)
MSCCLPP_DETAIL_ATOMIC_SCOPES(4, unsigned int, "32", "r", float, "f32", "f")
MSCCLPP_DETAIL_ATOMIC_SCOPES(8, unsigned long long, "64", "l", double, "f64", "d")
#undef MSCCLPP_DETAIL_ATOMIC_SCOPES
#undef MSCCLPP_DETAIL_ATOMIC_OF
#undef MSCCLPP_DETAIL_ATOMIC
#undef MSCCLPP_DETAIL_ATOMIC_ORDERS

// Floats are added as floats, all else as integers.
template <typename T>
struct IsFloat {
  static constexpr bool value = false;
};
template <>
struct IsFloat<float> {
  static constexpr bool value = true;
};
template <>
struct IsFloat<double> {
  static constexpr bool value = true;
};

// The type itself, which the compiler does not deduce from an argument: `atomicStore(&word, 1, ...)` converts the 1.
template <typename T>
struct Same {
  using Type = T;
};

}  // namespace detail

// Reads a word.
template <typename T, auto Scope = scopeSystem, typename Order>
MSCCLPP_DEVICE_INLINE T atomicLoad(const T* word, Order order) {
  return detail::bitsAs<T>(detail::AtomicWord<sizeof(T), int(Scope)>::load(word, static_cast<int>(order)));
}

// Writes a word.
template <typename T, auto Scope = scopeSystem, typename Order>
MSCCLPP_DEVICE_INLINE void atomicStore(T* word, const typename detail::Same<T>::Type& value, Order order) {
  using Access = detail::AtomicWord<sizeof(T), int(Scope)>;
  Access::store(word, detail::bitsAs<typename Access::Word>(value), static_cast<int>(order));
}

// Adds to a word, and returns its previous value.
template <typename T, auto Scope = scopeSystem, typename Order>
MSCCLPP_DEVICE_INLINE T atomicFetchAdd(T* word, const typename detail::Same<T>::Type& value, Order order) {
  using Access = detail::AtomicWord<sizeof(T), int(Scope)>;
  if constexpr (detail::IsFloat<T>::value) {
    return Access::add(word, value, static_cast<int>(order));
  } else {
    return detail::bitsAs<T>(Access::add(word, detail::bitsAs<typename Access::Word>(value), static_cast<int>(order)));
  }
}

// Writes a word, and returns its previous value.
template <typename T, auto Scope = scopeSystem, typename Order>
MSCCLPP_DEVICE_INLINE T atomicExchange(T* word, const typename detail::Same<T>::Type& value, Order order) {
  using Access = detail::AtomicWord<sizeof(T), int(Scope)>;
  return detail::bitsAs<T>(
      Access::exchange(word, detail::bitsAs<typename Access::Word>(value), static_cast<int>(order)));
}

// Writes a word if its bits are those of `expected`, and returns whether it did. `expected` becomes the previous value.
template <typename T, auto Scope = scopeSystem, typename Order>
MSCCLPP_DEVICE_INLINE bool atomicCompareExchange(T* word, T& expected, const typename detail::Same<T>::Type& value,
                                                 Order order) {
  using Access = detail::AtomicWord<sizeof(T), int(Scope)>;
  using Word = typename Access::Word;
  const Word wanted = detail::bitsAs<Word>(expected);
  const Word before = Access::compareSwap(word, wanted, detail::bitsAs<Word>(value), static_cast<int>(order));
  expected = detail::bitsAs<T>(before);
  return before == wanted;
}
#endif  // MSCCLPP_DEVICE_CUDA

}  // namespace mscclpp

#endif  // MSCCLPP_ATOMIC_DEVICE_HPP_
