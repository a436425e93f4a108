// Signals of windows. Each rank counts the signals that it has sent to each rank, and those that it has taken.
#include "access.cuh"
#include <mscclpp/abort_device.hpp>

using namespace ringfold;
using mscclpp::AbortPage;
using mscclpp::DeviceError;
using mscclpp::SpinGuard;

struct Params {
    u32* own;      // how many this rank has sent or taken
    u32* arrived;  // how many have arrived: at the other rank, or here
    AbortPage* page;
    u64 timeout;  // in nanoseconds; 0 is the page's
    u64 peer;
};

// Stream order has made all earlier puts visible.
extern "C" __global__ void ringfold_signal(const __grid_constant__ Params p) {
    u32 number = *p.own + 1;
    *p.own = number;
    store_release(p.arrived, number);
}

extern "C" __global__ void ringfold_wait(const __grid_constant__ Params p) {
    u32 number = *p.own + 1;
    SpinGuard guard(p.page, DeviceError::Signal, int(p.peer), -1, p.timeout);
    while (int(load_acquire(p.arrived) - number) < 0) {
        if (guard.shouldStop()) return;
    }
    *p.own = number;
}
