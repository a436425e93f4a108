// The inputs and results of weighted averages, with the bits of the host.
//
// Macros set by the host: RF_ELEMENT, RF_THREADS.
#include "element.cuh"

using namespace ringfold;
using u32 = unsigned int;
using u64 = unsigned long long;

using Element = RF_ELEMENT;
using Raw = Element::Raw;
using Wide = Element::Wide;

// Rounds to f32, to the neighbour with an odd last place if the value is inexact: rounding that to 16 bits gives the same
// as rounding the original.
__device__ __forceinline__ double to_odd_single(double value) {
    float nearest = float(value);
    u32 truncated = __float_as_uint(nearest) - u32(fabs(double(nearest)) > fabs(value));
    u32 is_inexact = double(nearest) < value || double(nearest) > value;
    return double(__uint_as_float(truncated | is_inexact));
}

// Multiplies by a factor.
extern "C" __global__ void __launch_bounds__(RF_THREADS)
    ringfold_scale(Raw* target, const Raw* source, u64 count, double factor) {
    u64 step = u64(gridDim.x) * RF_THREADS;
    for (u64 i = u64(blockIdx.x) * RF_THREADS + threadIdx.x; i < count; i += step) {
        Wide product = Element::multiply(Element::widen(source[i]), Wide(factor));
        target[i] = Element::narrow(product != product ? Element::nan() : product);
    }
}

// Divides by the sum of weights, with one rounding.
extern "C" __global__ void __launch_bounds__(RF_THREADS)
    ringfold_divide(Raw* target, const Raw* source, u64 count, double by) {
    u64 step = u64(gridDim.x) * RF_THREADS;
    for (u64 i = u64(blockIdx.x) * RF_THREADS + threadIdx.x; i < count; i += step) {
        double quotient = double(Element::widen(source[i])) / by;
        if (sizeof(Raw) < 4) quotient = to_odd_single(quotient);
        Wide wide = Wide(quotient);
        target[i] = Element::narrow(wide != wide ? Element::nan() : wide);
    }
}
