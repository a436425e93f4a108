// All-reduce and all-gather between ranks that have mapped each other's memory.
//
// Each rank has an arena, which all ranks have mapped:
//
//   sequence | epoch of each block | flags of each block from each rank | mailbox of each rank | packets | staging
//
// All state that changes from call to call is in the arena and is advanced by the kernel itself, so that a launch can be
// captured and replayed. Ranks make the same calls in the same order, each call after the previous one has ended.
//
// `ringfold_small`: every rank sends its data to all others in packets that contain their own flags, and folds all of
//   it. Consecutive calls use different halves of the packets. A rank that has all packets of a call knows that all
//   ranks have started it, and so have ended the previous one, whose half the next call may overwrite.
// `ringfold_bulk`: each rank folds a part for all. Blocks of the same index synchronise by barriers; before the first
//   one each rank writes where its tensors are. If all are in registered memory, they are read and written in place;
//   otherwise all data goes through staging areas, in rounds small enough to stay in the cache.
//
// Macros set by the host: RF_WORLD, RF_ELEMENT, RF_OP, RF_GATHER, and the offsets in the arena.
#include "access.cuh"
#include "element.cuh"
#include <mscclpp/abort_device.hpp>

using namespace ringfold;
using mscclpp::AbortPage;
using mscclpp::DeviceError;
using mscclpp::SpinGuard;

constexpr int WORLD = RF_WORLD;
constexpr bool IS_GATHER = RF_GATHER;
using Element = RF_ELEMENT;
using Op = RF_OP;
using Raw = Element::Raw;

constexpr int THREADS = RF_THREADS;
// Operands of one fold, and 16-byte vectors that a thread has in flight.
constexpr int OPERANDS = IS_GATHER ? 1 : WORLD;
constexpr int UNROLL = OPERANDS >= 4 ? 1 : OPERANDS >= 2 ? 2 : 4;
constexpr u64 VECTOR = sizeof(uint4);
// Consecutive polls that may see a packet with only one matching flag.
constexpr int MISMATCH_POLLS_MAX = 4096;

struct Params {
    char* source;
    char* target;
    u64 count;         // elements of the source
    u64 fold_source;   // the part that this rank folds: start in sources, start in targets, length, in elements
    u64 fold_target;
    u64 fold_count;
    u64 source_code;   // position of source and target in registered memory: slot + 1 and offset; 0 if not registered
    u64 target_code;
    u64 fingerprint;   // of the call's arguments: equal on all ranks
    const u64* slots;  // the local address of each rank's memory of each slot
    AbortPage* page;
    char* arenas[WORLD];
    u32 me;
    u32 reserved;
};

// What each rank tells the others at the first barrier.
struct Mailbox {
    u64 source_code, target_code, fingerprint, reserved;
};

struct Shared {
    const char* sources[WORLD];
    char* targets[WORLD];
    int is_staged;
};

__device__ __forceinline__ u32* flag_at(char* arena, u32 block, u32 from) {
    return reinterpret_cast<u32*>(arena + RF_FLAGS) + block * RF_FLAG_STRIDE + from;
}

// Barrier between all ranks' blocks of this index. Writes before it are visible to all after it. False on a timeout.
__device__ bool barrier(const Params& p, u32 epoch) {
    __syncthreads();
    u32 peer = threadIdx.x;
    int should_stop = 0;
    if (peer < WORLD && peer != p.me) {
        store_release(flag_at(p.arenas[peer], blockIdx.x, p.me), epoch);
        const u32* theirs = flag_at(p.arenas[p.me], blockIdx.x, peer);
        SpinGuard guard(p.page, DeviceError::Signal, peer, -1);
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

__device__ __forceinline__ bool is_aligned(const void* at, u64 to) {
    return (reinterpret_cast<u64>(at) & (to - 1)) == 0;
}

// Copies bytes by the threads of a block.
__device__ void copy(char* to, const char* from, u64 bytes) {
    u64 done = 0;
    if (is_aligned(to, VECTOR) && is_aligned(from, VECTOR)) {
        u64 vectors = bytes / VECTOR;
        auto* out = reinterpret_cast<uint4*>(to);
        auto* in = reinterpret_cast<const uint4*>(from);
        u64 i = threadIdx.x;
#pragma unroll 1
        for (; i + 3 * THREADS < vectors; i += 4 * THREADS) {
            uint4 a = __ldcg(in + i), b = __ldcg(in + i + THREADS);
            uint4 c = __ldcg(in + i + 2 * THREADS), d = __ldcg(in + i + 3 * THREADS);
            out[i] = a;
            out[i + THREADS] = b;
            out[i + 2 * THREADS] = c;
            out[i + 3 * THREADS] = d;
        }
#pragma unroll 1
        for (; i < vectors; i += THREADS) out[i] = __ldcg(in + i);
        done = vectors * VECTOR;
    }
    auto* out = reinterpret_cast<Raw*>(to + done);
    auto* in = reinterpret_cast<const Raw*>(from + done);
#pragma unroll 1
    for (u64 i = threadIdx.x; i < (bytes - done) / sizeof(Raw); i += THREADS) out[i] = __ldcg(in + i);
}

// Folds a single element.
__device__ __forceinline__ void fold_one(const Shared& shared, u64 offset) {
    Raw operands[OPERANDS];
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) operands[i] = __ldcg(reinterpret_cast<const Raw*>(shared.sources[i] + offset));
    Raw out = fold<Element, Op, OPERANDS, Raw>(operands);
#pragma unroll
    for (int rank = 0; rank < WORLD; rank++) *reinterpret_cast<Raw*>(shared.targets[rank] + offset) = out;
}

// Folds `bytes` from the shared pointers on; this thread does the vectors `first`, `first + step` and so on.
__device__ void fold_range(const Shared& shared, u64 bytes, u64 first, u64 step) {
    // Vectors are used only if all pointers have the same misalignment.
    u64 misalignment = reinterpret_cast<u64>(shared.sources[0]) & (VECTOR - 1);
    bool is_uniform = true;
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) is_uniform &= (reinterpret_cast<u64>(shared.sources[i]) & (VECTOR - 1)) == misalignment;
#pragma unroll
    for (int i = 0; i < WORLD; i++) is_uniform &= (reinterpret_cast<u64>(shared.targets[i]) & (VECTOR - 1)) == misalignment;
    if (!is_uniform) {
#pragma unroll 1
        for (u64 at = first * sizeof(Raw); at < bytes; at += step * sizeof(Raw)) fold_one(shared, at);
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
                    operands[u][k] = __ldcg(reinterpret_cast<const uint4*>(shared.sources[k] + offset));
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            u64 offset = head + (i + u * step) * VECTOR;
            if (i + u * step < vectors) {
                uint4 out = fold<Element, Op, OPERANDS, uint4>(operands[u]);
#pragma unroll
                for (int rank = 0; rank < WORLD; rank++) {
                    store_global(reinterpret_cast<uint4*>(shared.targets[rank] + offset), out);
                }
            }
        }
    }
#pragma unroll 1
    for (u64 at = first * sizeof(Raw); at < head; at += step * sizeof(Raw)) fold_one(shared, at);
#pragma unroll 1
    for (u64 at = tail + first * sizeof(Raw); at < bytes; at += step * sizeof(Raw)) fold_one(shared, at);
}

// In place: each rank folds its part from all sources into all targets.
__device__ bool run_direct(const Params& p, Shared& shared, u32& epoch) {
    u64 first = u64(blockIdx.x) * THREADS + threadIdx.x;
    fold_range(shared, p.fold_count * sizeof(Raw), first, u64(gridDim.x) * THREADS);
    return barrier(p, ++epoch);
}

// Through the staging areas. Each block has its own chunk of each area, and handles every gridDim-th chunk of the data.
// Rank r folds the r-th piece of each chunk.
__device__ bool run_staged(const Params& p, Shared& shared, u32& epoch) {
    constexpr u64 GRAIN = VECTOR * WORLD;
    u64 total = p.count * sizeof(Raw);
    u64 share = ((total + gridDim.x - 1) / gridDim.x + GRAIN - 1) / GRAIN * GRAIN;
    u64 chunk = RF_STAGING_BYTES / gridDim.x / GRAIN * GRAIN;
    if (share < chunk) chunk = share;
    // Mailboxes may be overwritten after one more barrier, so idle blocks take part, too.
    if (blockIdx.x * chunk >= total) return barrier(p, ++epoch);
    char* in = p.arenas[p.me] + RF_STAGING + blockIdx.x * chunk;
    u64 out_offset = RF_STAGING + RF_STAGING_BYTES + blockIdx.x * chunk;
#pragma unroll 1
    for (u64 start = blockIdx.x * chunk; start < total; start += gridDim.x * chunk) {
        u64 bytes = total - start < chunk ? total - start : chunk;
        copy(in, p.source + start, bytes);
        if (!barrier(p, ++epoch)) return false;
        if constexpr (IS_GATHER) {
#pragma unroll 1
            for (int rank = 0; rank < WORLD; rank++) {
                copy(p.target + rank * total + start, p.arenas[rank] + RF_STAGING + blockIdx.x * chunk, bytes);
            }
            if (!barrier(p, ++epoch)) return false;
        } else {
            u64 piece = ((bytes + WORLD - 1) / WORLD + VECTOR - 1) / VECTOR * VECTOR;
            u64 begin = p.me * piece < bytes ? p.me * piece : bytes;
            u64 end = begin + piece < bytes ? begin + piece : bytes;
            if (threadIdx.x < WORLD) {
                char* arena = p.arenas[threadIdx.x];
                shared.sources[threadIdx.x] = arena + RF_STAGING + blockIdx.x * chunk + begin;
                shared.targets[threadIdx.x] = arena + out_offset + begin;
            }
            __syncthreads();
            fold_range(shared, end - begin, threadIdx.x, THREADS);
            if (!barrier(p, ++epoch)) return false;
            copy(p.target + start, p.arenas[p.me] + out_offset, bytes);
        }
    }
    return true;
}

// Exchanges the positions of the tensors with all ranks.
__device__ bool exchange(const Params& p, Shared& shared, u32& epoch) {
    u32 peer = threadIdx.x;
    int is_mismatch = 0;
    if (peer < WORLD && peer != p.me) {
        // All blocks write the same values.
        auto* mailbox = reinterpret_cast<volatile Mailbox*>(p.arenas[peer] + RF_MAILBOXES) + p.me;
        mailbox->source_code = p.source_code;
        mailbox->target_code = p.target_code;
        mailbox->fingerprint = p.fingerprint;
    }
    if (!barrier(p, ++epoch)) return false;
    if (peer < WORLD) {
        u64 source_code = p.source_code, target_code = p.target_code;
        if (peer != p.me) {
            auto* mailbox = reinterpret_cast<volatile const Mailbox*>(p.arenas[p.me] + RF_MAILBOXES) + peer;
            source_code = mailbox->source_code;
            target_code = mailbox->target_code;
            if (mailbox->fingerprint != p.fingerprint) {
                mscclpp::detail::report(p.page, DeviceError::Argument, peer, 0, 0);
                is_mismatch = 1;
            }
        }
        if (source_code == 0 || target_code == 0) {
            shared.is_staged = 1;
        } else {
            constexpr u64 OFFSET = (1ull << RF_SLOT_SHIFT) - 1;
            auto at = [&](u64 code) {
                u64 slot = (code >> RF_SLOT_SHIFT) - 1;
                u64 base = peer == p.me ? 0 : p.slots[slot * WORLD + peer];
                return reinterpret_cast<char*>(base + (code & OFFSET));
            };
            const char* source = peer == p.me ? p.source : at(source_code);
            char* target = peer == p.me ? p.target : at(target_code);
            shared.targets[peer] = target + p.fold_target * sizeof(Raw);
            if (!IS_GATHER) shared.sources[peer] = source + p.fold_source * sizeof(Raw);
            if (IS_GATHER && peer == p.me) shared.sources[0] = source + p.fold_source * sizeof(Raw);
        }
    }
    return __syncthreads_or(is_mismatch) == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ringfold_bulk(const __grid_constant__ Params p) {
    __shared__ Shared shared;
    auto* epochs = reinterpret_cast<u32*>(p.arenas[p.me] + RF_EPOCHS);
    u32 epoch = epochs[blockIdx.x];
    // Set by other threads only after the barrier in `exchange`.
    if (threadIdx.x == 0) shared.is_staged = 0;
    if (!exchange(p, shared, epoch)) return;
    if (!(shared.is_staged ? run_staged(p, shared, epoch) : run_direct(p, shared, epoch))) return;
    if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;
}

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

__device__ __forceinline__ uint4* packet_at(char* arena, u32 half, u32 from, u64 index) {
    return reinterpret_cast<uint4*>(arena + RF_PACKETS) + (u64(half) * WORLD + from) * RF_PACKETS_MAX + index;
}

// Waits for all ranks' packets of this index. False on a timeout.
__device__ bool receive(const Params& p, u32 half, u64 index, u32 flag, u32 check_flag, uint2 own, uint2 (&operands)[WORLD]) {
    int waited_for = -1, mismatches = 0;
    SpinGuard guard(p.page, DeviceError::Packet, -1, -1);
    while (true) {
        int missing = -1;
        bool is_mismatch = false;
#pragma unroll
        for (int rank = 0; rank < WORLD; rank++) {
            uint4 packet = make_uint4(own.x, flag, own.y, check_flag);
            if (rank != p.me) packet = load_volatile(packet_at(p.arenas[p.me], half, rank, index));
            operands[rank] = make_uint2(packet.x, packet.z);
            if (packet.y != flag || packet.w != check_flag) {
                missing = rank;
                is_mismatch = packet.y == flag;
            }
        }
        if (missing < 0) return true;
        if (missing != waited_for) {
            waited_for = missing;
            guard = SpinGuard(p.page, DeviceError::Packet, missing, -1);
        }
        // A packet is never half written for long: the peer made a different call.
        mismatches = is_mismatch ? mismatches + 1 : 0;
        if (mismatches == MISMATCH_POLLS_MAX) mscclpp::detail::report(p.page, DeviceError::Argument, missing, 0, 0);
        if (guard.shouldStop()) return false;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ringfold_small(const __grid_constant__ Params p) {
    auto* sequence = reinterpret_cast<volatile u64*>(p.arenas[p.me]);
    auto* ended = reinterpret_cast<u32*>(p.arenas[p.me]) + 2;
    u64 number = *sequence + 1;
    u32 half = u32(number & 1);
    // Never 0, the initial content. The second flag detects mismatched calls.
    u32 flag = u32(number) * 2 + 1;
    u32 check_flag = flag ^ u32(p.fingerprint ^ (p.fingerprint >> 32));
    u64 total = p.count * sizeof(Raw);
    u64 packets = (total + 7) / 8, first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (u64 index = first; index < packets; index += step) {
        uint2 own = load_packet(p.source, index * 8, total);
#pragma unroll
        for (int rank = 0; rank < WORLD; rank++) {
            if (rank != p.me) {
                store_volatile(packet_at(p.arenas[rank], half, p.me, index), make_uint4(own.x, flag, own.y, check_flag));
            }
        }
    }
#pragma unroll 1
    for (u64 index = first; index < packets; index += step) {
        uint2 operands[WORLD];
        if (!receive(p, half, index, flag, check_flag, load_packet(p.source, index * 8, total), operands)) break;
        if constexpr (IS_GATHER) {
#pragma unroll
            for (int rank = 0; rank < WORLD; rank++) {
                store_packet(p.target + rank * total, index * 8, total, operands[rank]);
            }
        } else {
            store_packet(p.target, index * 8, total, fold<Element, Op, WORLD, uint2>(operands));
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        // The last block: all blocks have read the sequence number by now.
        if (gridDim.x == 1 || atomicAdd(ended, 1u) == gridDim.x - 1) {
            *ended = 0;
            *sequence = number;
        }
    }
}
