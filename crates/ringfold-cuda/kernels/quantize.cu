// Quantised all-reduces: what crosses between devices are integers, with the bits of the host (`ringfold-kernels`).
//
// A tensor is a list of chunks, each with parameters (two doubles) and an integer per element. `encode` quantises the
// chunks of other owners, `settle` reduces the own chunks and quantises the results, `decode` stores the results of others.
// A block works on a chunk. Everything between integers and elements is computed in double, without fused multiply-adds.
//
// Macros set by the host: RF_WORLD, RF_ELEMENT, RF_ELEMENT_MAX, RF_OP, RF_INTEGER, RF_INTEGER_MIN, RF_INTEGER_MAX,
// RF_IS_MIN_MAX, RF_THREADS.
#include "element.cuh"

using namespace ringfold;
using u32 = unsigned int;
using u64 = unsigned long long;

using Element = RF_ELEMENT;
using Op = RF_OP;
using Raw = Element::Raw;
using Wide = Element::Wide;
using Code = RF_INTEGER;

constexpr int WORLD = RF_WORLD;
constexpr int THREADS = RF_THREADS;
constexpr double LOWEST = RF_INTEGER_MIN, HIGHEST = RF_INTEGER_MAX, ELEMENT_MAX = RF_ELEMENT_MAX;
constexpr u64 PARAMETER_BYTES = 16;

struct Chunk {
    u64 first;  // element
    u64 wire;   // offset of its quantised form
    u32 count;
    u32 owner;  // rank
};

struct Params {
    const Raw* source;
    Raw* result;
    const Chunk* chunks;
    u64 chunk_count;
    u64 me;
    char* inputs[WORLD];   // the quantised inputs of each rank
    char* outputs[WORLD];  // the quantised results of each rank
};

struct Parameters {
    double first, second;
};

struct Affine {
    double offset, step, base, density, floor, ceiling;
};

__device__ __forceinline__ bool is_finite(double value) { return value - value == 0.0; }

__device__ __forceinline__ double clamped(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

// The distance between two levels; the range itself may overflow.
__device__ __forceinline__ double step_of(double low, double high, double levels) {
    double range = high - low;
    return is_finite(range) ? range / levels : high / levels - low / levels;
}

__device__ __forceinline__ double density_of(double step) {
    double density = 1.0 / step;
    return is_finite(density) ? density : 0.0;
}

__device__ Parameters parameters_of(bool is_valid, double low, double high) {
    const double nan = __longlong_as_double(0x7ff8000000000000ll);
    if (!is_valid) return {nan, nan};
#if RF_IS_MIN_MAX
    return {low, high};
#else
    // A single value is the scale, one above the integer for zero, and so is exact.
    if (low == high) return {low, LOWEST - 1.0};
    low = low < 0.0 ? low : 0.0;
    high = high > 0.0 ? high : 0.0;
    double scale = step_of(low, high, HIGHEST - LOWEST);
    if (!is_finite(1.0 / scale)) return {0.0, 0.0};
    return {scale, clamped(rint(LOWEST - low / scale), LOWEST, HIGHEST)};
#endif
}

__device__ Affine affine_of(Parameters found) {
    const double nan = __longlong_as_double(0x7ff8000000000000ll), infinity = __longlong_as_double(0x7ff0000000000000ll);
    bool is_valid = is_finite(found.first) && is_finite(found.second);
#if RF_IS_MIN_MAX
    is_valid = is_valid && found.first <= found.second;
#endif
    if (!is_valid) return {nan, nan, nan, nan, -infinity, infinity};
#if RF_IS_MIN_MAX
    double low = found.first, high = found.second, levels = HIGHEST - LOWEST;
    double step = step_of(low, high, levels);
    bool is_narrow = is_finite(high - low);
    return {is_narrow ? 0.0 : levels / 2.0,
            step,
            is_narrow ? low : low / 2.0 + high / 2.0,
            density_of(step),
            clamped(low, -ELEMENT_MAX, ELEMENT_MAX),
            clamped(high, -ELEMENT_MAX, ELEMENT_MAX)};
#else
    return {found.second, found.first, -0.0, density_of(found.first), -ELEMENT_MAX, ELEMENT_MAX};
#endif
}

// The integer nearest to a finite value.
__device__ __forceinline__ Code integer_of(const Affine& affine, double value) {
    // Adding this to a number below 2^32 leaves the number rounded to nearest even in the low bits.
    constexpr double ROUNDER = 6755399441055744.0;
    double position = (value - affine.base) * affine.density + affine.offset;
    position = position < LOWEST ? LOWEST : position;
    position = position > HIGHEST ? HIGHEST : position;
    return Code(__double_as_longlong(position + ROUNDER));
}

__device__ __forceinline__ Raw element_of(const Affine& affine, Code integer) {
    double value = (double(integer) - affine.offset) * affine.step + affine.base;
    // The comparisons keep NaNs.
    value = value < affine.floor ? affine.floor : value;
    value = value > affine.ceiling ? affine.ceiling : value;
    Wide wide = Wide(value);
    return Element::narrow(wide != wide ? Element::nan() : wide);
}

struct Shared {
    double low[THREADS / 32], high[THREADS / 32];
    Parameters parameters;
    Affine affine;
    int is_valid;
};

// The affine mapping of a chunk in quantised form.
__device__ const Affine& read_affine(const char* wire, Shared& shared) {
    __syncthreads();
    if (threadIdx.x == 0) {
        auto* found = reinterpret_cast<const double*>(wire);
        shared.affine = affine_of({__ldcg(found), __ldcg(found + 1)});
    }
    __syncthreads();
    return shared.affine;
}

// Quantises elements, which this block has written or only reads.
__device__ void quantize(const Raw* data, u32 count, char* wire, Shared& shared) {
    const double infinity = __longlong_as_double(0x7ff0000000000000ll);
    double low = infinity, high = -infinity;
    int is_tainted = 0;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        double value = double(Element::widen(data[i]));
        low = value < low ? value : low;
        high = value > high ? value : high;
        is_tainted |= !is_finite(value);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
        double other_low = __shfl_xor_sync(0xffffffffu, low, distance);
        double other_high = __shfl_xor_sync(0xffffffffu, high, distance);
        low = other_low < low ? other_low : low;
        high = other_high > high ? other_high : high;
    }
    if (threadIdx.x % 32 == 0) {
        shared.low[threadIdx.x / 32] = low;
        shared.high[threadIdx.x / 32] = high;
    }
    is_tainted = __syncthreads_or(is_tainted);
    if (threadIdx.x == 0) {
        for (int i = 0; i < THREADS / 32; i++) {
            low = shared.low[i] < low ? shared.low[i] : low;
            high = shared.high[i] > high ? shared.high[i] : high;
        }
        // The sign of a zero depends on the order; adding zero makes it positive.
        shared.parameters = parameters_of(!is_tainted, low + 0.0, high + 0.0);
        shared.affine = affine_of(shared.parameters);
        reinterpret_cast<double*>(wire)[0] = shared.parameters.first;
        reinterpret_cast<double*>(wire)[1] = shared.parameters.second;
    }
    __syncthreads();
    auto* integers = reinterpret_cast<Code*>(wire + PARAMETER_BYTES);
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        integers[i] = is_tainted ? Code(0) : integer_of(shared.affine, double(Element::widen(data[i])));
    }
}

__device__ void dequantize(const char* wire, u32 count, Raw* out, Shared& shared) {
    const Affine& affine = read_affine(wire, shared);
    auto* integers = reinterpret_cast<const Code*>(wire + PARAMETER_BYTES);
    for (u32 i = threadIdx.x; i < count; i += THREADS) out[i] = element_of(affine, __ldcg(integers + i));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ringfold_encode(const __grid_constant__ Params p) {
    __shared__ Shared shared;
    for (u64 index = blockIdx.x; index < p.chunk_count; index += gridDim.x) {
        Chunk chunk = p.chunks[index];
        if (chunk.owner == p.me) continue;
        quantize(p.source + chunk.first, chunk.count, p.inputs[p.me] + chunk.wire, shared);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ringfold_settle(const __grid_constant__ Params p) {
    __shared__ Shared shared;
    for (u64 index = blockIdx.x; index < p.chunk_count; index += gridDim.x) {
        Chunk chunk = p.chunks[index];
        if (chunk.owner != p.me) continue;
        Raw* result = p.result + chunk.first;
        for (u32 i = threadIdx.x; i < chunk.count; i += THREADS) result[i] = p.source[chunk.first + i];
#pragma unroll 1
        for (u32 rank = 0; rank < WORLD; rank++) {
            if (rank == p.me) continue;
            const char* wire = p.inputs[rank] + chunk.wire;
            const Affine& affine = read_affine(wire, shared);
            auto* integers = reinterpret_cast<const Code*>(wire + PARAMETER_BYTES);
            // Each thread reads and writes its own elements only.
            for (u32 i = threadIdx.x; i < chunk.count; i += THREADS) {
                Raw other = element_of(affine, __ldcg(integers + i));
                result[i] = Element::narrow(Op::template of<Element>(Element::widen(result[i]), Element::widen(other)));
            }
        }
        if constexpr (IsSame<Op, Avg>::value) {
            for (u32 i = threadIdx.x; i < chunk.count; i += THREADS) {
                result[i] = Element::narrow(Element::divide(Element::widen(result[i]), WORLD));
            }
        }
        char* wire = p.outputs[p.me] + chunk.wire;
        __syncthreads();
        quantize(result, chunk.count, wire, shared);
        __syncthreads();
        dequantize(wire, chunk.count, result, shared);
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    ringfold_decode(const __grid_constant__ Params p) {
    __shared__ Shared shared;
    for (u64 index = blockIdx.x; index < p.chunk_count; index += gridDim.x) {
        Chunk chunk = p.chunks[index];
        if (chunk.owner != p.me) dequantize(p.outputs[chunk.owner] + chunk.wire, chunk.count, p.result + chunk.first, shared);
    }
}
