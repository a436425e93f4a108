// Every rank puts its part of an array into the arrays of all other ranks, and waits until theirs have arrived.
#include <mscclpp/port_channel_device.hpp>

// channels[rank] is zeros, so that channels can be indexed by rank.
extern "C" __global__ void __launch_bounds__(1024, 1)
    put_all(mscclpp::PortChannelDeviceHandle* channels, int rank, int ranks, int elements) {
  int other = threadIdx.x;
  uint64_t bytes = elements / ranks * sizeof(int);
  uint64_t offset = bytes * rank;
  if (other < ranks && other != rank) {
    channels[other].putWithSignalAndFlush(offset, offset, bytes);
    channels[other].wait();
  }
}
