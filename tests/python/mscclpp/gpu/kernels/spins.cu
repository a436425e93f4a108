// Waits for what never comes, of every kind, and other things that the host must hear of.
#include <mscclpp/assert_device.hpp>
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/fifo_device.hpp>
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/poll_device.hpp>
#include <mscclpp/port_channel_device.hpp>

__device__ mscclpp::DeviceSyncer syncer;
__device__ mscclpp::DeviceSemaphore nothing;

// The page of waits that have no handle.
extern "C" __global__ void use_page(uint64_t page) { mscclppAbortPage = page; }

extern "C" __global__ void wait_for_signal(mscclpp::MemoryChannelDeviceHandle channel, int64_t spins, int* result) {
  *result = channel.wait(spins);
}

extern "C" __global__ void wait_for_host(mscclpp::PortChannelDeviceHandle channel, int64_t spins, int* result) {
  *result = channel.wait(spins);
}

// Pushes until there is no room.
extern "C" __global__ void wait_for_room(mscclpp::FifoDeviceHandle fifo, int64_t spins, int* result) {
  mscclpp::ProxyTrigger trigger;
  trigger.fst = 1;
  trigger.snd = 2;
  int count = 0;
  while (fifo.push(trigger, spins) != ~uint64_t(0)) ++count;
  *result = count;
}

extern "C" __global__ void wait_for_flush(mscclpp::PortChannelDeviceHandle channel, int64_t spins, int* result) {
  *result = channel.flush(spins);
}

extern "C" __global__ void wait_for_packets(mscclpp::MemoryChannelDeviceHandle channel, int64_t spins, int* result) {
  const int mine = channel.unpackPackets(0, 0, 8 * blockDim.x, threadIdx.x, blockDim.x, 1u, spins);
  if (threadIdx.x == 0) *result = mine;
}

extern "C" __global__ void wait_for_packet(const mscclpp::LL8Packet* packet, int64_t spins, int* result) {
  packet->read(1u, spins);
  *result = 4;
}

extern "C" __global__ void wait_for_blocks(int64_t spins, int* result) {
  const int mine = syncer.sync(int(gridDim.x) + 1, spins);
  // All threads get the result.
  if (threadIdx.x == blockDim.x - 1) *result = mine;
}

// After the others gave up, the same syncer serves again.
extern "C" __global__ void meet_again(int64_t spins, int* result) {
  const int mine = syncer.sync(int(gridDim.x), spins);
  if (mine != 0 || blockIdx.x == 0) *result = mine;
}

extern "C" __global__ void wait_for_place(int64_t spins, int* result) { *result = nothing.acquire(spins); }

extern "C" __global__ void wait_for_condition(const volatile int* zero, int64_t spins, int* result) {
  POLL_MAYBE_JAILBREAK(*zero == 0, spins);
  OR_POLL_MAYBE_JAILBREAK(*zero == 0, *zero == 1, spins);
  *result = 1;
}

// What no trigger can say.
extern "C" __global__ void ask_too_much(mscclpp::PortChannelDeviceHandle channel, uint64_t target, uint64_t origin,
                                        uint64_t bytes, int* result) {
  *result = channel.put(target, origin, bytes);
}

extern "C" __global__ void assert_something(int64_t value, int* result) {
  MSCCLPP_ASSERT_DEVICE(value == 1, "the value is one");
  *result = 1;
}

// Each thread pushes so many triggers that tell who pushed them and in which order.
extern "C" __global__ void push_all(mscclpp::FifoDeviceHandle fifo, uint64_t each, uint64_t synced, int* result) {
  const uint64_t me = blockIdx.x * blockDim.x + threadIdx.x;
  for (uint64_t i = 0; i < each; ++i) {
    mscclpp::ProxyTrigger trigger;
    trigger.fst = me + 1;
    trigger.snd = i | (uint64_t(1) << 63);
    const uint64_t position = fifo.push(trigger);
    if (position == ~uint64_t(0)) *result = 2;
    if (synced && fifo.sync(position) != 0) *result = 3;
    if (synced && !fifo.poll(position)) *result = 99;
  }
}

// The triggers of a channel, one of each kind.
extern "C" __global__ void ask(mscclpp::PortChannelDeviceHandle channel, int* result) {
  int failures = 0;
  failures += channel.put(0x11111111, 0x22222222, 0x33333333) != 0;
  failures += channel.put(0x44, 0x55) != 0;
  failures += channel.signal() != 0;
  failures += channel.putWithSignal(1, 2, 3) != 0;
  failures += channel.putWithSignalAndFlush(4, 5, 6) != 0;
  failures += channel.flush() != 0;
  *result = failures;
}
