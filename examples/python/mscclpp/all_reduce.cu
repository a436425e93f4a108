// An all-reduce of floats by packets: every rank writes its data into the scratch memory of all ranks, and adds up the
// data it receives.
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/packet_device.hpp>

// A flag that differs in each call, so that packets of one call are not taken for those of another. It is counted on
// the device, and so also when a graph is replayed.
__device__ unsigned int calls;

extern "C" __global__ void all_reduce(mscclpp::MemoryChannelDeviceHandle* channels, int rank, int ranks, float* data,
                                      int pairs) {
  // Every thread reads the number before thread 0 increments it: there is one block.
  const unsigned int flag = calls + 1;
  __syncthreads();
  if (threadIdx.x == 0) calls = flag;

  // Two halves of the scratch memory alternate: a rank that has all packets of this call knows that all ranks have
  // started it, and so have finished the previous call.
  const size_t bytes = pairs * sizeof(float2);
  const size_t half = (flag & 1) * ranks * 2 * bytes;
  for (int i = 1; i < ranks; ++i) {
    const int peer = (rank + i) % ranks;
    channels[peer].putPackets(half + rank * 2 * bytes, 0, bytes, threadIdx.x, blockDim.x, flag);
  }
  // The data is overwritten below.
  __syncthreads();
  for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    // In rank order: all ranks get the same bits.
    float2 sum = make_float2(0, 0);
    for (int from = 0; from < ranks; ++from) {
      float2 part = reinterpret_cast<float2*>(data)[pair];
      if (from != rank) {
        const uint2 raw = channels[from].unpackPacket((half + from * 2 * bytes) / sizeof(mscclpp::LL16Packet) + pair, flag);
        part = make_float2(__uint_as_float(raw.x), __uint_as_float(raw.y));
      }
      sum = make_float2(sum.x + part.x, sum.y + part.y);
    }
    reinterpret_cast<float2*>(data)[pair] = sum;
  }
}
