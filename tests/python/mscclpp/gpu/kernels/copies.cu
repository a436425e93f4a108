// Copies and packets, each as a kernel. All numbers are 64 bits wide, so that parameters follow each other without gaps.
#include <mscclpp/atomic_device.hpp>
#include <mscclpp/bulk_device.hpp>
#include <mscclpp/copy_device.hpp>
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/packet_device.hpp>
#include <mscclpp/poll_device.hpp>

// The page of waits that have no handle.
extern "C" __global__ void use_page(uint64_t page) { mscclppAbortPage = page; }

__device__ __forceinline__ uint32_t globalThread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ uint32_t globalThreads() { return gridDim.x * blockDim.x; }

extern "C" __global__ void copy_bytes(void* dst, const void* src, uint64_t bytes, uint64_t alignment) {
  const uint32_t tid = globalThread(), n = globalThreads();
  if (alignment == 4) mscclpp::copy<4>(dst, src, bytes, tid, n);
  if (alignment == 8) mscclpp::copy<8>(dst, src, bytes, tid, n);
  if (alignment == 16) mscclpp::copy(dst, src, bytes, tid, n);
}

// Without the rest behind the last whole vector.
extern "C" __global__ void copy_vectors(void* dst, const void* src, uint64_t bytes) {
  mscclpp::copy<16, false>(dst, src, bytes, globalThread(), globalThreads());
}

// Through shared memory and back, one block.
extern "C" __global__ void copy_shared(void* dst, const void* src, uint64_t bytes) {
  __shared__ __align__(16) char room[4096];
  mscclpp::copy(room, src, bytes, threadIdx.x, blockDim.x);
  __syncthreads();
  mscclpp::copy(dst, room, bytes, threadIdx.x, blockDim.x);
}

// Tiles of 16 KiB go through shared memory by bulk copies, and each byte is inverted there. One block.
extern "C" __global__ void copy_bulk(char* dst, const char* src, uint64_t bytes, int* error) {
  constexpr uint32_t tileBytes = 16384;
  __shared__ __align__(128) char tile[tileBytes];
  __shared__ mscclpp::BulkBarrier arrived;
  if (threadIdx.x == 0) arrived.init();
  __syncthreads();
  uint32_t round = 0;
  for (uint64_t at = 0; at < bytes; at += tileBytes, ++round) {
    const uint32_t size = bytes - at < tileBytes ? uint32_t(bytes - at) : tileBytes;
    // Two loads are one round.
    if (threadIdx.x == 0) {
      if (round % 2 == 0 || size < 32) {
        mscclpp::bulkLoad(tile, src + at, size, arrived);
      } else {
        arrived.expect(size);
        mscclpp::bulkLoadPart(tile, src + at, 16, arrived);
        mscclpp::bulkLoadPart(tile + 16, src + at + 16, size - 16, arrived);
      }
    }
    if (arrived.wait(round, 1 << 26) != 0) atomicAdd(error, 1);
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x) tile[i] = ~tile[i];
    mscclpp::bulkFence();
    __syncthreads();
    if (threadIdx.x == 0) {
      mscclpp::bulkStore(dst + at, tile, size);
      mscclpp::bulkCommit();
      mscclpp::bulkWaitRead();
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) mscclpp::bulkWait();
}

// Every thread counts in four ways: with integers and floats, by addition and by exchange. Words: uint32, uint64,
// float, double, then uint64 that is only incremented by compare-exchange, and a ticket that only the first thread takes.
template <auto Scope>
__device__ void count(uint64_t* words, uint64_t rounds) {
  using namespace mscclpp;
  for (uint64_t i = 0; i < rounds; ++i) {
    atomicFetchAdd<uint32_t, Scope>(reinterpret_cast<uint32_t*>(words), 1, memoryOrderRelaxed);
    atomicFetchAdd<uint64_t, Scope>(words + 1, 1, memoryOrderAcqRel);
    atomicFetchAdd<float, Scope>(reinterpret_cast<float*>(words + 2), 1, memoryOrderRelease);
    atomicFetchAdd<double, Scope>(reinterpret_cast<double*>(words + 3), 0.5, memoryOrderSeqCst);
    uint64_t expected = atomicLoad<uint64_t, Scope>(words + 4, memoryOrderAcquire);
    while (!atomicCompareExchange<uint64_t, Scope>(words + 4, expected, expected + 1, memoryOrderAcqRel)) continue;
  }
  if (atomicExchange<uint64_t, Scope>(words + 5, 1, memoryOrderAcquire) == 0) {
    atomicFetchAdd<uint64_t, Scope>(words + 6, 1, memoryOrderRelaxed);
  }
}

extern "C" __global__ void count_all(uint64_t* words, uint64_t rounds, uint64_t scope) {
  if (scope == mscclpp::scopeSystem) count<mscclpp::scopeSystem>(words, rounds);
  if (scope == mscclpp::scopeDevice) count<mscclpp::scopeDevice>(words, rounds);
  if (scope == mscclpp::scopeBlock) count<mscclpp::scopeBlock>(words, rounds);
}

// The first block writes data and then a flag; the second one waits for the flag and checks the data.
extern "C" __global__ void publish(uint32_t* data, uint32_t* flag, uint64_t rounds, uint32_t* wrong) {
  using namespace mscclpp;
  for (uint32_t round = 1; round <= rounds; ++round) {
    if (blockIdx.x == 0) {
      *data = round;
      atomicStore(flag, 2 * round - 1, memoryOrderRelease);
      POLL_MAYBE_JAILBREAK(atomicLoad(flag, memoryOrderAcquire) != 2 * round, 1 << 26);
    } else {
      POLL_MAYBE_JAILBREAK(atomicLoad(flag, memoryOrderAcquire) != 2 * round - 1, 1 << 26);
      if (*data != round) ++*wrong;
      atomicStore(flag, 2 * round, memoryOrderRelease);
    }
  }
}

extern "C" __global__ void put_bytes(mscclpp::MemoryChannelDeviceHandle channel, uint64_t target, uint64_t origin,
                                     uint64_t bytes, uint64_t alignment) {
  const uint32_t tid = globalThread(), n = globalThreads();
  if (alignment == 4) channel.put<4>(target, origin, bytes, tid, n);
  if (alignment == 8) channel.put<8>(target, origin, bytes, tid, n);
  if (alignment == 16) channel.put(target, origin, bytes, tid, n);
}

extern "C" __global__ void get_bytes(mscclpp::MemoryChannelDeviceHandle channel, uint64_t target, uint64_t origin,
                                     uint64_t bytes) {
  channel.get(target, origin, bytes, globalThread(), globalThreads());
}

extern "C" __global__ void read_and_write(mscclpp::MemoryChannelDeviceHandle channel, uint64_t count) {
  for (uint64_t i = globalThread(); i < count; i += globalThreads()) {
    channel.write<uint32_t>(i, channel.read<uint32_t>(i) * 2 + 1);
  }
}

extern "C" __global__ void to_packets(void* packets, const void* data, uint64_t bytes, uint64_t flag, uint64_t width) {
  const uint32_t tid = globalThread(), n = globalThreads();
  if (width == 16) mscclpp::copyToPackets(packets, data, bytes, tid, n, uint32_t(flag));
  if (width == 8) mscclpp::copyToPackets<mscclpp::LL8Packet>(packets, data, bytes, tid, n, uint32_t(flag));
}

extern "C" __global__ void from_packets(void* data, const void* packets, uint64_t bytes, uint64_t flag, uint64_t width,
                                        int* error) {
  const uint32_t tid = globalThread(), n = globalThreads();
  int mine = 0;
  if (width == 16) mine = mscclpp::copyFromPackets(data, packets, bytes, tid, n, uint32_t(flag));
  if (width == 8) mine = mscclpp::copyFromPackets<mscclpp::LL8Packet>(data, packets, bytes, tid, n, uint32_t(flag));
  if (mine != 0) *error = mine;
}

// Some blocks write, as many read what the others wrote, at the same time and round after round. Each block of either
// side has a channel to its partner.
extern "C" __global__ void packet_rounds(mscclpp::MemoryChannelDeviceHandle* writers,
                                         mscclpp::MemoryChannelDeviceHandle* readers, uint64_t bytes, uint64_t rounds,
                                         uint64_t width, uint64_t firstFlag, int* error) {
  const uint32_t half = gridDim.x / 2;
  const bool writes = blockIdx.x < half;
  const uint32_t block = writes ? blockIdx.x : blockIdx.x - half;
  mscclpp::MemoryChannelDeviceHandle channel = writes ? writers[block] : readers[block];
  const uint32_t tid = block * blockDim.x + threadIdx.x, n = half * blockDim.x;
  // Two parts of the packet buffer by turns; a reader's answer comes before a part is written again.
  const uint64_t room = 2 * ((bytes + 15) / 16 * 16);
  for (uint64_t round = 0; round < rounds; ++round) {
    const uint64_t at = (round & 1) * room;
    const uint32_t flag = uint32_t(firstFlag + round);
    if (writes) {
      if (round >= 2) {
        if (threadIdx.x == 0 && channel.wait() != 0) *error = 100;
        __syncthreads();
      }
      if (width == 16) channel.putPackets(at, 0, bytes, tid, n, flag);
      if (width == 8) channel.putPackets<mscclpp::LL8Packet>(at, 0, bytes, tid, n, flag);
    } else {
      int mine = 0;
      if (width == 16) mine = channel.unpackPackets(at, 0, bytes, tid, n, flag);
      if (width == 8) mine = channel.getPackets<mscclpp::LL8Packet>(at, 0, bytes, tid, n, flag);
      if (mine != 0) *error = mine;
      __syncthreads();
      if (threadIdx.x == 0) channel.signal();
    }
  }
}

// Single packets and the old forms.
extern "C" __global__ void single_packets(mscclpp::LLPacket* wide, mscclpp::LL8Packet* narrow, void* data,
                                          mscclpp::MemoryChannelDeviceHandle channel, uint32_t* seen) {
  if (threadIdx.x != 0) return;
  uint2 value;
  uint32_t word;
  wide[0].write(1u, 2u, 7u);
  seen[0] = wide[0].readOnce(8u, value);
  seen[1] = wide[0].readOnce(7u, value);
  value = wide[0].read(7u);
  seen[2] = value.x;
  seen[3] = value.y;
  wide[1].write(uint64_t(5) << 32 | 4, 9u);
  value = channel.unpackPacket(1, 9u);
  seen[4] = value.x;
  seen[5] = value.y;
  wide[1].clear();
  seen[6] = wide[1].readOnce(9u, value);
  narrow[0].write(11u, 3u);
  seen[7] = narrow[0].readOnce(4u, word);
  seen[8] = narrow[0].read(3u);
  narrow[0].clear();
  seen[9] = narrow[0].readOnce(3u, word);
  uint32_t* words = static_cast<uint32_t*>(data);
  words[0] = 21;
  words[1] = 22;
  mscclpp::putPackets(wide, 32, data, 0, 8, 0, 1, 33u);
  seen[10] = uint32_t(mscclpp::getPackets(wide, 32, data, 8, 8, 0, 1, 33u));
  seen[11] = words[2];
  seen[12] = words[3];
}
