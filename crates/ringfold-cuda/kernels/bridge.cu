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
    u64 timeout;  // of the call, in nanoseconds; 0 is the page's
};

// How much longer than the page's limit a device waits for the host, which waits for others and knows them.
constexpr u64 PATIENCE_NS = 5ull * 1000 * 1000 * 1000;

// Stream order has made the piece visible. A piece that could not be computed is not handed over.
extern "C" __global__ void ringfold_hand_over(const __grid_constant__ Params p) {
    if (mscclpp::detail::loadRelaxedSys(&p.page->lines[0].flag) != 0) return;
    u32 number = *p.own + 1;
    *p.own = number;
    p.jobs[number % RF_BRIDGE_JOBS] = p.job;
    store_release(p.host, number);
}

extern "C" __global__ void ringfold_take_back(const __grid_constant__ Params p) {
    u32 number = *p.own + 1;
    u64 limit = p.timeout ? p.timeout : mscclpp::detail::loadRelaxedSys(&p.page->lines[0].spinNs);
    u64 patience = limit > ~0ull / 4 ? ~0ull : 2 * limit + PATIENCE_NS;
    SpinGuard guard(p.page, DeviceError::Signal, -1, -1, patience);
    while (int(load_acquire(p.host) - number) < 0) {
        if (guard.shouldStop()) return;
    }
    *p.own = number;
}
