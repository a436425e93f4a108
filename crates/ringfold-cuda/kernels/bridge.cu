// The bridge between a device and a thread of its host. Each kernel counts the pieces that it has handed over, or taken back.
#include "access.cuh"
#include <mscclpp/abort_device.hpp>

using namespace ringfold;
using mscclpp::AbortPage;
using mscclpp::DeviceError;
using mscclpp::SpinGuard;

struct Params {
    u32* own;            // how many this device has handed over, or taken back
    u32* host;           // the same, for the host; or how many the host has given back
    volatile u64* jobs;  // a ring: what the host is to do with each piece
    u64 job;
    AbortPage* page;
    u64 timeout;  // in nanoseconds; 0 is the page's
};

// Stream order has made the piece visible.
extern "C" __global__ void ringfold_hand_over(const __grid_constant__ Params p) {
    u32 number = *p.own + 1;
    *p.own = number;
    p.jobs[number % RF_BRIDGE_JOBS] = p.job;
    store_release(p.host, number);
}

extern "C" __global__ void ringfold_take_back(const __grid_constant__ Params p) {
    u32 number = *p.own + 1;
    SpinGuard guard(p.page, DeviceError::Signal, -1, -1, p.timeout);
    while (int(load_acquire(p.host) - number) < 0) {
        if (guard.shouldStop()) return;
    }
    *p.own = number;
}
