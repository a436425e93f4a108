// What all kernels of collectives share: the arenas of all ranks, barriers between them, packets, and folds.
//
// Each rank has an arena, which all ranks have mapped:
//
//   sequence | epoch of each block | flags of each block from each rank | mailbox of each rank | packets | staging
//
// All state that changes from call to call is in the arena and is advanced by the kernel itself, so that a launch can be
// captured and replayed. Ranks make the same calls in the same order, each call after the previous one has ended.
//
// Macros set by the host: RF_WORLD, RF_ELEMENT, RF_OP, and the offsets in the arena.
#pragma once

#include "access.cuh"
#include "element.cuh"
#include <mscclpp/abort_device.hpp>

namespace ringfold {

using mscclpp::AbortPage;
using mscclpp::DeviceError;
using mscclpp::SpinGuard;

constexpr int WORLD = RF_WORLD;
using Element = RF_ELEMENT;
using Op = RF_OP;
using Raw = Element::Raw;

constexpr int THREADS = RF_THREADS;
constexpr u32 ALL_RANKS = (1u << WORLD) - 1;
constexpr u64 VECTOR = sizeof(uint4);
// Consecutive polls that may see a packet with only one matching flag.
constexpr int MISMATCH_POLLS_MAX = 4096;

// How a rank reaches the others. The last parameter of each kernel.
struct Links {
    u64 fingerprint;   // of the call's arguments: equal on all ranks
    u64 timeout;       // of this call, in nanoseconds; 0 is the page's
    const u64* slots;  // the local address of each rank's memory of each slot
    AbortPage* page;
    char* arenas[WORLD];
    u32 me;
    u32 phase;
};

// A large call is one kernel, whose blocks wait for those of the other ranks: all of them must run at the same time. On a
// device that several groups share, it is three: two of a single block, which wait, and one in between, which does not; or, if
// data goes through staging areas, only its first RF_SHARED_BLOCKS blocks do.
enum Phase : u32 { WHOLE = 0, MEET = 1, WORK = 2, PART = 3 };

// Whether the ranks have met in the call of three kernels that is under way: a wait that failed must not be worked on.
__device__ __forceinline__ volatile u32* met(const Links& links) {
    return reinterpret_cast<volatile u32*>(links.arenas[links.me]) + 3;
}

// The blocks that move data through staging areas.
__device__ __forceinline__ u32 staging_blocks(const Links& links) {
    return links.phase == WHOLE || gridDim.x < RF_SHARED_BLOCKS ? gridDim.x : RF_SHARED_BLOCKS;
}

__device__ __forceinline__ u32* flag_at(char* arena, u32 block, u32 from) {
    return reinterpret_cast<u32*>(arena + RF_FLAGS) + block * RF_FLAG_STRIDE + from;
}

// Barrier between all ranks' blocks of this index. Writes before it are visible to all after it. False on a timeout.
__device__ bool barrier(const Links& links, u32 epoch) {
    __syncthreads();
    u32 peer = threadIdx.x;
    int should_stop = 0;
    if (peer < WORLD && peer != links.me) {
        store_release(flag_at(links.arenas[peer], blockIdx.x, links.me), epoch);
        const u32* theirs = flag_at(links.arenas[links.me], blockIdx.x, peer);
        SpinGuard guard(links.page, DeviceError::Signal, peer, -1, links.timeout);
        // The peer may be one step ahead.
        while (int(load_acquire(theirs) - epoch) < 0) {
            if (guard.shouldStop()) {
                should_stop = 1;
                break;
            }
        }
    }
    // All threads of the block return the same result.
    return __syncthreads_or(should_stop) == 0;
}

// What each rank tells another at the first barrier.
template <class Content>
__device__ __forceinline__ volatile Content* mailbox_at(char* arena, u32 from) {
    static_assert(sizeof(Content) == RF_MAILBOX_BYTES, "the layout's size of a mailbox");
    return reinterpret_cast<volatile Content*>(arena + RF_MAILBOXES) + from;
}

// The address of another rank's registered memory, by its position: slot + 1 and offset.
__device__ __forceinline__ char* registered_at(const Links& links, u32 rank, u64 code) {
    u64 slot = (code >> RF_SLOT_SHIFT) - 1;
    return reinterpret_cast<char*>(links.slots[slot * WORLD + rank] + (code & ((1ull << RF_SLOT_SHIFT) - 1)));
}

__device__ __forceinline__ bool is_aligned(const void* at, u64 to) {
    return (reinterpret_cast<u64>(at) & (to - 1)) == 0;
}

// Folds a single element.
template <int OPERANDS, int TARGETS>
__device__ __forceinline__ void fold_one(const char* const* sources, char* const* targets, u64 offset) {
    Raw operands[OPERANDS];
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) operands[i] = __ldcg(reinterpret_cast<const Raw*>(sources[i] + offset));
    Raw out = fold<Element, Op, OPERANDS, Raw>(operands);
#pragma unroll
    for (int i = 0; i < TARGETS; i++) *reinterpret_cast<Raw*>(targets[i] + offset) = out;
}

// Folds `bytes` of the sources into all targets; this thread does the vectors `first`, `first + step` and so on.
template <int OPERANDS, int TARGETS>
__device__ void fold_range(const char* const* sources, char* const* targets, u64 bytes, u64 first, u64 step) {
    // 16-byte vectors that a thread has in flight.
    constexpr int UNROLL = OPERANDS >= 4 ? 1 : OPERANDS >= 2 ? 2 : 4;
    // Vectors are used only if all pointers have the same misalignment.
    u64 misalignment = reinterpret_cast<u64>(sources[0]) & (VECTOR - 1);
    bool is_uniform = true;
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) is_uniform &= (reinterpret_cast<u64>(sources[i]) & (VECTOR - 1)) == misalignment;
#pragma unroll
    for (int i = 0; i < TARGETS; i++) is_uniform &= (reinterpret_cast<u64>(targets[i]) & (VECTOR - 1)) == misalignment;
    if (!is_uniform) {
#pragma unroll 1
        for (u64 at = first * sizeof(Raw); at < bytes; at += step * sizeof(Raw)) fold_one<OPERANDS, TARGETS>(sources, targets, at);
        return;
    }
    u64 head = (VECTOR - misalignment) & (VECTOR - 1);
    if (head > bytes) head = bytes;
    u64 vectors = (bytes - head) / VECTOR;
    u64 tail = head + vectors * VECTOR;
#pragma unroll 1
    for (u64 i = first; i < vectors; i += UNROLL * step) {
        uint4 operands[UNROLL][OPERANDS];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u64 offset = head + (i + u * step) * VECTOR;
            if (i + u * step < vectors) {
#pragma unroll
                for (int k = 0; k < OPERANDS; k++) {
                    operands[u][k] = __ldcg(reinterpret_cast<const uint4*>(sources[k] + offset));
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u64 offset = head + (i + u * step) * VECTOR;
            if (i + u * step < vectors) {
                uint4 out = fold<Element, Op, OPERANDS, uint4>(operands[u]);
#pragma unroll
                for (int k = 0; k < TARGETS; k++) store_global(reinterpret_cast<uint4*>(targets[k] + offset), out);
            }
        }
    }
#pragma unroll 1
    for (u64 at = first * sizeof(Raw); at < head; at += step * sizeof(Raw)) fold_one<OPERANDS, TARGETS>(sources, targets, at);
#pragma unroll 1
    for (u64 at = tail + first * sizeof(Raw); at < bytes; at += step * sizeof(Raw)) {
        fold_one<OPERANDS, TARGETS>(sources, targets, at);
    }
}

// Copies bytes; this thread does the vectors `first`, `first + step` and so on.
__device__ __forceinline__ void copy(char* to, const char* from, u64 bytes, u64 first, u64 step) {
    fold_range<1, 1>(&from, &to, bytes, first, step);
}

// The number of a call by packets, and the flags of its packets.
struct PacketCall {
    u64 number;
    u32 half;
    u32 flag;
    u32 check_flag;

    __device__ __forceinline__ explicit PacketCall(const Links& links) {
        number = *reinterpret_cast<volatile u64*>(links.arenas[links.me]) + 1;
        half = u32(number & 1);
        // Never 0, the initial content. The second flag detects mismatched calls.
        flag = u32(number) * 2 + 1;
        check_flag = flag ^ u32(links.fingerprint ^ (links.fingerprint >> 32));
    }

    __device__ __forceinline__ uint4* at(char* arena, u32 from, u64 index) const {
        return reinterpret_cast<uint4*>(arena + RF_PACKETS) + (u64(half) * WORLD + from) * RF_PACKETS_MAX + index;
    }

    __device__ __forceinline__ void send(const Links& links, u32 to, u64 index, uint2 value) const {
        store_volatile(at(links.arenas[to], links.me, index), make_uint4(value.x, flag, value.y, check_flag));
    }

    // The call is over on this rank, when all blocks come here.
    __device__ void end(const Links& links) const {
        __syncthreads();
        if (threadIdx.x == 0) {
            auto* ended = reinterpret_cast<u32*>(links.arenas[links.me]) + 2;
            // The last block: all blocks have read the sequence number by now.
            if (gridDim.x == 1 || atomicAdd(ended, 1u) == gridDim.x - 1) {
                *ended = 0;
                *reinterpret_cast<volatile u64*>(links.arenas[links.me]) = number;
            }
        }
    }
};

// Loads eight bytes of a tensor, fewer at its end.
__device__ __forceinline__ uint2 load_packet(const char* from, u64 at, u64 total) {
    if (at + 8 <= total && is_aligned(from, 8)) return *reinterpret_cast<const uint2*>(from + at);
    Lanes<Element, uint2> lanes;
    lanes.vector = make_uint2(0, 0);
#pragma unroll
    for (int i = 0; i < int(8 / sizeof(Raw)); i++) {
        if (at + (i + 1) * sizeof(Raw) <= total) lanes.raw[i] = *reinterpret_cast<const Raw*>(from + at + i * sizeof(Raw));
    }
    return lanes.vector;
}

__device__ __forceinline__ void store_packet(char* to, u64 at, u64 total, uint2 value) {
    if (at + 8 <= total && is_aligned(to, 8)) {
        *reinterpret_cast<uint2*>(to + at) = value;
        return;
    }
    Lanes<Element, uint2> lanes;
    lanes.vector = value;
#pragma unroll
    for (int i = 0; i < int(8 / sizeof(Raw)); i++) {
        if (at + (i + 1) * sizeof(Raw) <= total) *reinterpret_cast<Raw*>(to + at + i * sizeof(Raw)) = lanes.raw[i];
    }
}

// Waits for the packets of this index from the ranks that are `wanted`, a bit each. The others' operands are `own`. False
// on a timeout.
__device__ bool receive(const Links& links, const PacketCall& call, u64 index, u32 wanted, uint2 own,
                        uint2 (&operands)[WORLD]) {
    int waited_for = -1, mismatches = 0;
    SpinGuard guard(links.page, DeviceError::Packet, -1, -1, links.timeout);
    while (true) {
        int missing = -1;
        bool is_mismatch = false;
#pragma unroll
        for (int rank = 0; rank < WORLD; rank++) {
            uint4 packet = make_uint4(own.x, call.flag, own.y, call.check_flag);
            if (wanted >> rank & 1) packet = load_volatile(call.at(links.arenas[links.me], rank, index));
            operands[rank] = make_uint2(packet.x, packet.z);
            if (packet.y != call.flag || packet.w != call.check_flag) {
                missing = rank;
                is_mismatch = packet.y == call.flag;
            }
        }
        if (missing < 0) return true;
        if (missing != waited_for) {
            waited_for = missing;
            guard = SpinGuard(links.page, DeviceError::Packet, missing, -1, links.timeout);
        }
        // A packet is never half written for long: the peer made a different call.
        mismatches = is_mismatch ? mismatches + 1 : 0;
        if (mismatches == MISMATCH_POLLS_MAX) mscclpp::detail::report(links.page, DeviceError::Argument, missing, 0, 0);
        if (guard.shouldStop()) return false;
    }
}

}  // namespace ringfold
