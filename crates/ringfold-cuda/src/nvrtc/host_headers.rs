//! Minimal versions of the standard C headers, which NVRTC lacks.
//!
//! `size_t`, `assert`, `printf` and the functions of `math.h` are built into NVRTC; the integer types are not. They are
//! the same types as in CUDA's own C++ library, so that both may be included.

/// The name of the header that every source starts with: the integer types.
pub const PRELUDE: &str = "ringfold/prelude.h";

const TYPES: &str = "\
#pragma once
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
using intmax_t = int64_t;
using uintmax_t = uint64_t;
using ptrdiff_t = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));
#ifndef NULL
#define NULL 0
#endif
namespace std {
using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::intptr_t;
using ::uintptr_t;
using ::intmax_t;
using ::uintmax_t;
using ::ptrdiff_t;
using ::size_t;
using nullptr_t = decltype(nullptr);
}  // namespace std
";

const INTEGERS: &str = "\
#pragma once
#include <ringfold/prelude.h>
#include <limits.h>
#ifndef INT8_MIN
#define INT8_MIN SCHAR_MIN
#define INT16_MIN SHRT_MIN
#define INT32_MIN INT_MIN
#define INT64_MIN LLONG_MIN
#define INT8_MAX SCHAR_MAX
#define INT16_MAX SHRT_MAX
#define INT32_MAX INT_MAX
#define INT64_MAX LLONG_MAX
#define UINT8_MAX UCHAR_MAX
#define UINT16_MAX USHRT_MAX
#define UINT32_MAX UINT_MAX
#define UINT64_MAX ULLONG_MAX
#define INTPTR_MIN INT64_MIN
#define INTPTR_MAX INT64_MAX
#define UINTPTR_MAX UINT64_MAX
#define SIZE_MAX UINT64_MAX
#endif
";

const LIMITS: &str = "\
#pragma once
#ifndef CHAR_BIT
#define CHAR_BIT 8
#endif
#ifndef INT_MAX
#define SCHAR_MIN (-128)
#define SCHAR_MAX 127
#define UCHAR_MAX 255
#define SHRT_MIN (-32768)
#define SHRT_MAX 32767
#define USHRT_MAX 65535
#define INT_MIN (-2147483647 - 1)
#define INT_MAX 2147483647
#define UINT_MAX 4294967295U
#define LONG_MIN (-9223372036854775807L - 1)
#define LONG_MAX 9223372036854775807L
#define ULONG_MAX 18446744073709551615UL
#define LLONG_MIN (-9223372036854775807LL - 1)
#define LLONG_MAX 9223372036854775807LL
#define ULLONG_MAX 18446744073709551615ULL
#endif
";

const FLOATS: &str = "\
#pragma once
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38F
#define FLT_MIN 1.175494351e-38F
#define FLT_EPSILON 1.192092896e-07F
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16
#endif
";

/// The text of all other headers.
const PRELUDE_ONLY: &str = "\
#pragma once
#include <ringfold/prelude.h>
";

macro_rules! headers {
    ($($($name:literal)* => $text:ident;)*) => { &[(PRELUDE, TYPES), $($(($name, $text)),*),*] };
}

/// Name and text of every header.
#[rustfmt::skip]
pub const ALL: &[(&str, &str)] = headers! {
    "stdint.h" "cstdint" "inttypes.h" "cinttypes" => INTEGERS;
    "limits.h" "climits" => LIMITS;
    "float.h" "cfloat" => FLOATS;
    "stddef.h" "cstddef" "assert.h" "cassert" "stdio.h" "cstdio" "stdlib.h" "cstdlib"
    "string.h" "cstring" "math.h" "cmath" "stdbool.h" => PRELUDE_ONLY;
};
