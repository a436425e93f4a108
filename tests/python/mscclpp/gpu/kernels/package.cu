// Kernels of the tests of the package: both eras' names.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/port_channel_device.hpp>
#include <mscclpp/proxy_channel_device.hpp>
#include <mscclpp/sm_channel_device.hpp>

#ifndef FACTOR
#define FACTOR 1
#endif

extern "C" __global__ void scale(int* data, int n, int value) {
  for (int at = blockIdx.x * blockDim.x + threadIdx.x; at < n; at += gridDim.x * blockDim.x) data[at] = value * FACTOR;
}

// More dynamic shared memory than a kernel has unless it is asked for.
extern "C" __global__ void through_shared(int* data, int n) {
  extern __shared__ int held[];
  for (int at = threadIdx.x; at < n; at += blockDim.x) held[at] = at * 3;
  __syncthreads();
  for (int at = threadIdx.x; at < n; at += blockDim.x) data[at] = held[n - 1 - at];
}

__device__ mscclpp::DeviceSyncer syncer;

// All blocks put this rank's part into all others, and wait for theirs.
extern "C" __global__ void memory_put_all(mscclpp::MemoryChannelDeviceHandle* channels, int rank, int ranks, int bytes) {
  int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) channels[other].put((uint64_t)bytes * rank, bytes, thread, threads);
  }
  syncer.sync(gridDim.x);
  if (blockIdx.x == 0 && threadIdx.x < ranks && threadIdx.x != rank) {
    channels[threadIdx.x].signal();
    channels[threadIdx.x].wait();
  }
}

// The others' parts are read from there.
extern "C" __global__ void memory_get_all(mscclpp::SmChannelDeviceHandle* channels, int rank, int ranks, int bytes) {
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) channels[other].get((uint64_t)bytes * other, bytes, threadIdx.x, blockDim.x);
  }
  __syncthreads();
  // Nobody changes its part before all have read it.
  if (threadIdx.x < ranks && threadIdx.x != rank) {
    channels[threadIdx.x].signal();
    channels[threadIdx.x].wait();
  }
}

// This rank's data goes as packets into a slot of each other's scratch; what came is unpacked over this rank's own, from
// the rank before.
extern "C" __global__ void packets_around(mscclpp::SmChannelDeviceHandle* channels, int rank, int ranks, int bytes, int flag) {
  int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
  channels[next].putPackets<mscclpp::LL16Packet>((uint64_t)2 * bytes * rank, 0, bytes, threadIdx.x, blockDim.x, flag);
  __syncthreads();
  channels[next].unpackPackets<mscclpp::LL16Packet>((uint64_t)2 * bytes * before, 0, bytes, threadIdx.x, blockDim.x, flag);
}

extern "C" __global__ void port_put_all(mscclpp::ProxyChannelDeviceHandle* channels, int rank, int ranks, int bytes) {
  int other = threadIdx.x;
  if (other < ranks && other != rank) {
    channels[other].putWithSignal((uint64_t)bytes * rank, (uint64_t)bytes * rank, bytes);
    channels[other].wait();
    channels[other].flush();
  }
}

// Memories are named by their ids.
extern "C" __global__ void base_put(mscclpp::BasePortChannelDeviceHandle channel, int target, int source, int bytes) {
  channel.putWithSignal(target, 0, source, 0, bytes);
  channel.wait();
  channel.flush();
}

extern "C" __global__ void wait_for_host(mscclpp::Host2DeviceSemaphoreDeviceHandle semaphore, int* data, int times) {
  for (int at = 0; at < times; ++at) {
    data[1] = semaphore.wait();
    data[0] = at + 1;
    __threadfence_system();
  }
}

extern "C" __global__ void push_some(mscclpp::FifoDeviceHandle fifo, int n) {
  uint64_t at = 0;
  for (int i = 1; i <= n; ++i) {
    mscclpp::ProxyTrigger trigger;
    trigger.fst = i;
    trigger.snd = i * 10;
    at = fifo.push(trigger);
  }
  fifo.sync(at);
}
