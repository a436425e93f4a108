// How blocks meet, and how ranks signal.
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/semaphore_device.hpp>

// The page of waits that have no handle.
extern "C" __global__ void use_page(uint64_t page) { mscclppAbortPage = page; }

__device__ mscclpp::DeviceSyncer syncer;
__device__ mscclpp::DeviceSemaphore places(2);

// Each block writes the number of the round into its word, and after the meeting all words must show it.
extern "C" __global__ void meet(volatile uint32_t* words, uint64_t rounds, uint64_t first, int* error) {
  const uint32_t n = gridDim.x;
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint32_t mark = uint32_t(first + round);
    if (threadIdx.x == blockDim.x - 1) words[blockIdx.x] = mark;
    if (syncer.sync(int(n)) != 0) {
      *error = 5;
      return;
    }
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
      if (words[i] != mark) *error = 99;
    }
    if (syncer.sync(int(n)) != 0) {
      *error = 5;
      return;
    }
  }
}

// A block of three dimensions.
extern "C" __global__ void meet_in_space(uint32_t* counter, uint64_t rounds, int* error) {
  for (uint64_t round = 0; round < rounds; ++round) {
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) atomicAdd(counter, 1u);
    if (syncer.sync(int(gridDim.x)) != 0) *error = 5;
    if (*static_cast<volatile uint32_t*>(counter) != (round + 1) * gridDim.x) *error = 99;
    if (syncer.sync(int(gridDim.x)) != 0) *error = 5;
  }
}

// So many blocks are inside at most.
extern "C" __global__ void crowd(int* inside, int* most, uint64_t rounds, int* error) {
  if (threadIdx.x != 0) return;
  for (uint64_t round = 0; round < rounds; ++round) {
    if (places.acquire() != 0) *error = 5;
    atomicMax(most, atomicAdd(inside, 1) + 1);
    atomicSub(inside, 1);
    places.release();
  }
}

// To and fro. The ranks are two blocks of one grid, two grids or two processes; device clocks give the time.
extern "C" __global__ void round_trips(mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle a,
                                       mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle b, uint64_t first,
                                       uint64_t rounds, uint64_t relaxed, uint64_t* nanoseconds, int* error) {
  if (threadIdx.x != 0) return;
  const bool begins = blockIdx.x + first == 0;
  mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle mine = begins ? a : b;
  const uint64_t warm = rounds / 10;
  uint64_t begin = 0;
  for (uint64_t round = 0; round < warm + rounds; ++round) {
    if (round == warm) begin = mscclpp::detail::nanoseconds();
    if (begins) relaxed ? mine.relaxedSignal() : mine.signal();
    if (int failure = mine.wait()) {
      *error = failure;
      return;
    }
    if (!begins) relaxed ? mine.relaxedSignal() : mine.signal();
  }
  if (begins) *nanoseconds = mscclpp::detail::nanoseconds() - begin;
}

// A message is written by a whole block, and signalled by one thread; the other side sees all of it.
extern "C" __global__ void messages(mscclpp::MemoryChannelDeviceHandle a, mscclpp::MemoryChannelDeviceHandle b,
                                    uint64_t first, uint64_t words, uint64_t rounds, int* error) {
  const bool begins = blockIdx.x + first == 0;
  mscclpp::MemoryChannelDeviceHandle mine = begins ? a : b;
  for (uint64_t round = 0; round < rounds; ++round) {
    if (begins) {
      uint32_t* source = static_cast<uint32_t*>(mine.src_);
      for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) source[i] = uint32_t(round * words + i);
      __syncthreads();
      mine.put(0, 0, words * 4, threadIdx.x, blockDim.x);
      __syncthreads();
      if (threadIdx.x == 0) {
        mine.signal();
        if (int failure = mine.wait()) *error = failure;
      }
      __syncthreads();
    } else {
      if (threadIdx.x == 0) {
        if (int failure = mine.wait()) *error = failure;
      }
      __syncthreads();
      const uint32_t* target = static_cast<const uint32_t*>(mine.src_);
      for (uint64_t i = threadIdx.x; i < words; i += blockDim.x) {
        if (target[i] != uint32_t(round * words + i)) *error = 99;
      }
      __syncthreads();
      if (threadIdx.x == 0) mine.signal();
    }
  }
}

// What poll and wait count.
extern "C" __global__ void counts(mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle to,
                                  mscclpp::MemoryDevice2DeviceSemaphoreDeviceHandle from, uint64_t* seen) {
  if (threadIdx.x != 0) return;
  seen[0] = from.poll();
  seen[1] = *from.expected_;
  to.signal();
  to.relaxedSignal();
  seen[2] = from.poll();
  seen[3] = *from.expected_;
  seen[4] = uint64_t(from.wait());
  seen[5] = *from.expected_;
  seen[6] = from.poll();
  seen[7] = *from.expected_;
}
