// What bench/gpu_channels.py measures: round trips of signals and of puts, and how fast triggers go through a FIFO.
#include <mscclpp/fifo_device.hpp>
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/port_channel_device.hpp>

// Signals to and fro between two ranks, from device memory to device memory.
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
  // A handle of one's own is in registers; one in memory is read anew after each wait.
  mscclpp::PortChannelDeviceHandle channel = *there;
  for (int round = 0; round < rounds; ++round) {
    if (rank == 0) channel.putWithSignal(0, 0, bytes);
    channel.wait();
    if (rank == 1) channel.putWithSignal(0, 0, bytes);
  }
}

// Every thread pushes so many triggers; the host takes them out.
extern "C" __global__ void triggers(mscclpp::FifoDeviceHandle fifo, int each) {
  mscclpp::ProxyTrigger trigger;
  trigger.fst = threadIdx.x + 1;
  trigger.snd = blockIdx.x;
  for (int i = 0; i < each; ++i) fifo.push(trigger);
}
