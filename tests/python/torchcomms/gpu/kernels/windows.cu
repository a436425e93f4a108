// Kernels of the tests of windows.
#include <torchcomms/window_device.hpp>

using torchcomms::DeviceWindow;

// Puts a row into the next rank's table, and waits for that of the previous rank. Rows are numbered by their senders.
extern "C" __global__ void ring(DeviceWindow window, const void* row, uint64_t bytes, int* failures) {
  const int rank = window.rank(), size = window.size();
  bool is_good = window.put((rank + 1) % size, rank * bytes, row, bytes, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0) {
    is_good = is_good && window.signal((rank + 1) % size) && window.waitSignal((rank + size - 1) % size);
    if (!is_good) *failures += 1;
  }
}

// The same in the other direction without data: the previous rank's row was read.
extern "C" __global__ void acknowledge(DeviceWindow window, int* failures) {
  const int rank = window.rank(), size = window.size();
  window.signal((rank + size - 1) % size);
  if (!window.waitSignal((rank + 1) % size)) *failures += 1;
}

extern "C" __global__ void put(const DeviceWindow* window, const void* source, uint64_t bytes, uint64_t offset, int* failures,
                               int to) {
  const bool is_good = window->put(to, offset, source, bytes, threadIdx.x, blockDim.x);
  __syncthreads();
  if (threadIdx.x == 0 && !(is_good && window->signal(to))) *failures += 1;
}

extern "C" __global__ void wait(const DeviceWindow* window, int* failures, int from) {
  if (!window->waitSignal(from)) *failures += 1;
}

extern "C" __global__ void get(const DeviceWindow* window, void* target, uint64_t bytes, uint64_t offset, int* failures, int from) {
  if (!window->get(from, offset, target, bytes, threadIdx.x, blockDim.x) && threadIdx.x == 0) *failures += 1;
}

// Adds to each number of a rank's memory, all of it.
extern "C" __global__ void add(DeviceWindow window, long long number, int rank) {
  long long* all = static_cast<long long*>(window.memory(rank));
  for (uint64_t i = threadIdx.x; i < window.bytes(rank) / sizeof number; i += blockDim.x) all[i] += number;
}
