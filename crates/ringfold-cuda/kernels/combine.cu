// A fold of the operands of all ranks by one of them. The host knows that the operands are there, so nothing waits here.
#include "arena.cuh"

using namespace ringfold;

struct Params {
    const char* sources[WORLD];  // in the order of reduction
    char* target;
    u64 bytes;
};

extern "C" __global__ void __launch_bounds__(THREADS)
    ringfold_combine(const __grid_constant__ Params p) {
    fold_range<WORLD, 1>(p.sources, &p.target, p.bytes, u64(blockIdx.x) * THREADS + threadIdx.x, u64(gridDim.x) * THREADS);
}
