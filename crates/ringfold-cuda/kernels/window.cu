// Signals of windows, by host calls. Stream order has made all earlier puts visible.
#include <torchcomms/window_device.hpp>

struct Params {
    torchcomms::DeviceWindow window;
    unsigned long long timeout;  // in nanoseconds; 0 is the page's
    int peer;
};

extern "C" __global__ void ringfold_signal(const __grid_constant__ Params p) { p.window.signal(p.peer); }

extern "C" __global__ void ringfold_wait(const __grid_constant__ Params p) { p.window.waitSignal(p.peer, p.timeout); }
