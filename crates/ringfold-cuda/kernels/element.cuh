// Element types and reduction operators. Results are bit-identical to those of the CPU kernels (crate
// ringfold-kernels): integers wrap; f16 and bf16 are computed in f32 and rounded to nearest even at each step; NaNs are
// canonical; max and min are NaN if an operand is, and order -0 before +0. Compile without contraction (-fmad=false),
// with subnormals and with exact division.
#pragma once

namespace ringfold {

// An integer element. `Word` is the unsigned type of the same size, in which arithmetic wraps.
template <class Number, class Unsigned>
struct Integer {
    using Raw = Number;
    using Wide = Number;
    using Word = Unsigned;
    static constexpr bool is_real = false;
    static __device__ __forceinline__ Wide widen(Raw raw) { return raw; }
    static __device__ __forceinline__ Raw narrow(Wide wide) { return wide; }
    static __device__ __forceinline__ Wide divide(Wide wide, int by) { return Wide(wide / Number(by)); }
};

using U8 = Integer<unsigned char, unsigned char>;
using I8 = Integer<signed char, unsigned char>;
using U16 = Integer<unsigned short, unsigned short>;
using I16 = Integer<short, unsigned short>;
using U32 = Integer<unsigned int, unsigned int>;
using I32 = Integer<int, unsigned int>;
using U64 = Integer<unsigned long long, unsigned long long>;
using I64 = Integer<long long, unsigned long long>;

// A float element: `to_bits` and `from_bits` reinterpret it, `prefix` starts the names of its intrinsics.
#define RF_FLOAT(Name, Number, nan_bits, to_bits, from_bits, prefix)                                                   \
    struct Name {                                                                                                      \
        using Raw = Number;                                                                                            \
        using Wide = Number;                                                                                           \
        static constexpr bool is_real = true;                                                                          \
        static __device__ __forceinline__ Wide widen(Raw raw) { return raw; }                                          \
        static __device__ __forceinline__ Raw narrow(Wide wide) { return wide; }                                       \
        static __device__ __forceinline__ Wide nan() { return from_bits(nan_bits); }                                   \
        static __device__ __forceinline__ Wide add(Wide a, Wide b) { return prefix##add_rn(a, b); }                    \
        static __device__ __forceinline__ Wide multiply(Wide a, Wide b) { return prefix##mul_rn(a, b); }               \
        static __device__ __forceinline__ Wide bit_and(Wide a, Wide b) { return from_bits(to_bits(a) & to_bits(b)); }  \
        static __device__ __forceinline__ Wide bit_or(Wide a, Wide b) { return from_bits(to_bits(a) | to_bits(b)); }   \
        static __device__ __forceinline__ Wide divide(Wide wide, int by) {                                             \
            Wide quotient = prefix##div_rn(wide, Number(by));                                                          \
            return quotient != quotient ? nan() : quotient;                                                            \
        }                                                                                                              \
    };
RF_FLOAT(F32, float, 0x7fc00000u, __float_as_uint, __uint_as_float, __f)
RF_FLOAT(F64, double, 0x7ff8000000000000ll, __double_as_longlong, __longlong_as_double, __d)
#undef RF_FLOAT

struct F16 : F32 {
    using Raw = unsigned short;
    static __device__ __forceinline__ Wide widen(Raw raw) {
        float wide;
        asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(raw));
        return wide;
    }
    static __device__ __forceinline__ Raw narrow(Wide wide) {
        unsigned short raw;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(wide));
        return wide != wide ? 0x7e00 : raw;
    }
};

struct BF16 : F32 {
    using Raw = unsigned short;
    static __device__ __forceinline__ Wide widen(Raw raw) { return __uint_as_float(unsigned(raw) << 16); }
    static __device__ __forceinline__ Raw narrow(Wide wide) {
        // NaNs are canonical here, and rounding does not change them.
        unsigned bits = __float_as_uint(wide);
        return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    }
};

struct Sum {
    template <class E>
    static __device__ __forceinline__ typename E::Wide of(typename E::Wide a, typename E::Wide b) {
        if constexpr (E::is_real) {
            typename E::Wide sum = E::add(a, b);
            return sum != sum ? E::nan() : sum;
        } else {
            return typename E::Wide(typename E::Word(typename E::Word(a) + typename E::Word(b)));
        }
    }
};

// A sum that is divided once at the end.
struct Avg : Sum {};

struct Prod {
    template <class E>
    static __device__ __forceinline__ typename E::Wide of(typename E::Wide a, typename E::Wide b) {
        if constexpr (E::is_real) {
            typename E::Wide product = E::multiply(a, b);
            return product != product ? E::nan() : product;
        } else {
            // Short integers are multiplied as unsigned: signed multiplication could overflow.
            return typename E::Wide(typename E::Word((unsigned long long)(typename E::Word(a)) * typename E::Word(b)));
        }
    }
};

struct Max {
    template <class E>
    static __device__ __forceinline__ typename E::Wide of(typename E::Wide a, typename E::Wide b) {
        if constexpr (E::is_real) {
            // The two operands differ only for equal numbers, whose bits differ only if they are zeros.
            typename E::Wide most = E::bit_and(a > b ? a : b, b > a ? b : a);
            return a != a || b != b ? E::nan() : most;
        } else {
            return a > b ? a : b;
        }
    }
};

struct Min {
    template <class E>
    static __device__ __forceinline__ typename E::Wide of(typename E::Wide a, typename E::Wide b) {
        if constexpr (E::is_real) {
            typename E::Wide least = E::bit_or(a < b ? a : b, b < a ? b : a);
            return a != a || b != b ? E::nan() : least;
        } else {
            return a < b ? a : b;
        }
    }
};

#define RF_BITWISE(Name, op)                                                                                           \
    struct Name {                                                                                                      \
        template <class E>                                                                                             \
        static __device__ __forceinline__ typename E::Wide of(typename E::Wide a, typename E::Wide b) {                \
            return typename E::Wide(a op b);                                                                           \
        }                                                                                                              \
    };
RF_BITWISE(BitAnd, &)
RF_BITWISE(BitOr, |)
RF_BITWISE(BitXor, ^)
#undef RF_BITWISE

template <class A, class B>
struct IsSame {
    static constexpr bool value = false;
};
template <class A>
struct IsSame<A, A> {
    static constexpr bool value = true;
};

// A vector and its elements.
template <class E, class Vector>
union Lanes {
    Vector vector;
    typename E::Raw raw[sizeof(Vector) / sizeof(typename E::Raw)];
    __device__ Lanes() {}
};

// Reduces the operands in order, and divides the result for an average.
template <class E, class Op, int N, class Vector>
__device__ __forceinline__ Vector fold(const Vector (&operands)[N]) {
    constexpr int lanes = sizeof(Vector) / sizeof(typename E::Raw);
    Lanes<E, Vector> all[N];
#pragma unroll
    for (int i = 0; i < N; i++) all[i].vector = operands[i];
    Lanes<E, Vector> out;
#pragma unroll
    for (int lane = 0; lane < lanes; lane++) {
        typename E::Raw raw = all[0].raw[lane];
#pragma unroll
        for (int i = 1; i < N; i++) {
            raw = E::narrow(Op::template of<E>(E::widen(raw), E::widen(all[i].raw[lane])));
        }
        if constexpr (IsSame<Op, Avg>::value && N > 1) raw = E::narrow(E::divide(E::widen(raw), N));
        out.raw[lane] = raw;
    }
    return out.vector;
}

}  // namespace ringfold
