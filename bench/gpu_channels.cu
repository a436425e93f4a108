// The kernels of bench/gpu_channels.py: round trips of signals and of puts, and the rate of triggers through a FIFO.
#include <mscclpp/fifo_device.hpp>
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/port_channel_device.hpp>

// Round trips of signals between two ranks, from device memory to device memory.
extern "C" __global__ void signals(mscclpp::MemoryChannelDeviceHandle* channel, int rank, int rounds) {
  if (threadIdx.x != 0) return;
  for (int round = 0; round < rounds; ++round) {
    if (rank == 0) channel->signal();
    channel->wait();
    if (rank == 1) channel->signal();
  }
}

// The same with some bytes before each signal, all through the proxies.
extern "C" __global__ void puts(mscclpp::PortChannelDeviceHandle* there, int rank, int rounds, size_t bytes) {
  if (threadIdx.x != 0) return;
  // A local copy of the handle is in registers; a handle in memory is read again after each wait.
  mscclpp::PortChannelDeviceHandle channel = *there;
  for (int round = 0; round < rounds; ++round) {
    if (rank == 0) channel.putWithSignal(0, 0, bytes);
    channel.wait();
    if (rank == 1) channel.putWithSignal(0, 0, bytes);
  }
}

// Every thread pushes this number of triggers; the host pops them.
extern "C" __global__ void triggers(mscclpp::FifoDeviceHandle fifo, int each) {
  mscclpp::ProxyTrigger trigger;
  trigger.fst = threadIdx.x + 1;
  trigger.snd = blockIdx.x;
  for (int i = 0; i < each; ++i) fifo.push(trigger);
}
