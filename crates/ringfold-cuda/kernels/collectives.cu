// All-reduce and all-gather among ranks that reach each other's memory.
//
// Each rank has an arena, which all ranks have mapped:
//
//   sequence | epoch of each block | flags of each block from each rank | mail from each rank | packets | staging
//
// Every number that changes from call to call lives there and is advanced by the kernel itself, so that a launch can be
// captured and replayed. Ranks make the same calls in the same order, each call after the one before has ended.
//
// `ringfold_small`: everyone pushes its data to everyone, in packets that carry their own flags, and folds all of it.
//   Packets of one call and the next lie apart. Whoever has all packets of a call knows that all have begun it, and
//   so have ended the one before: its packets may be overwritten by the call after.
// `ringfold_bulk`: each rank folds a part for all. Blocks of the same number meet in barriers; with the first one each rank
//   tells where its tensors are. If all lie in registered memory, they are read and written in place; if not, all
//   of it goes through staging areas, in rounds, so small that they stay in the cache.
//
// Defined by whoever compiles: RF_WORLD, RF_ELEMENT, RF_OP, RF_GATHER, and the places in the arena.
#include "access.cuh"
#include "element.cuh"
#include <mscclpp/abort_device.hpp>

using namespace ringfold;
using mscclpp::AbortPage;
using mscclpp::DeviceError;
using mscclpp::Patience;

constexpr int WORLD = RF_WORLD;
constexpr bool IS_GATHER = RF_GATHER;
using Element = RF_ELEMENT;
using Op = RF_OP;
using Raw = Element::Raw;

constexpr int THREADS = RF_THREADS;
// Operands of one fold, and vectors of 16 bytes that a thread has on their way at once.
constexpr int OPERANDS = IS_GATHER ? 1 : WORLD;
constexpr int UNROLL = OPERANDS >= 4 ? 1 : OPERANDS >= 2 ? 2 : 4;
constexpr u64 VECTOR = sizeof(uint4);
// So often a packet may look like half of one.
constexpr int ODD_LOOKS_MAX = 4096;

struct Params {
    char* source;
    char* target;
    u64 count;         // elements of the source
    u64 fold_source;   // the fold of this rank: where it begins in sources, in targets, and how long it is, in elements
    u64 fold_target;
    u64 fold_count;
    u64 source_code;   // where source and target are in registered memory: slot + 1 and offset; 0 if they are not
    u64 target_code;
    u64 fingerprint;   // of what was asked for: equal on all ranks
    const u64* slots;  // where each rank's memory of each slot is mapped here
    AbortPage* page;
    char* arenas[WORLD];
    u32 me;
    u32 reserved;
};

// What the others say as they come.
struct Mail {
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

// All ranks' blocks of this number meet. What anyone wrote before is seen by everyone after. False if the wait was given up.
__device__ bool meet(const Params& p, u32 epoch) {
    __syncthreads();
    u32 peer = threadIdx.x;
    int is_over = 0;
    if (peer < WORLD && peer != p.me) {
        store_release(flag_at(p.arenas[peer], blockIdx.x, p.me), epoch);
        const u32* theirs = flag_at(p.arenas[p.me], blockIdx.x, peer);
        Patience patience(p.page, DeviceError::Signal, peer, -1);
        // They may be a step ahead already.
        while (int(load_acquire(theirs) - epoch) < 0) {
            if (patience.isOver()) {
                is_over = 1;
                break;
            }
        }
    }
    // The barrier carries the answer, so that all threads have the same.
    return __syncthreads_or(is_over) == 0;
}

__device__ __forceinline__ bool is_aligned(const void* at, u64 to) {
    return (reinterpret_cast<u64>(at) & (to - 1)) == 0;
}

// Copies by the threads of a block.
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

// One element alone.
__device__ __forceinline__ void fold_one(const Shared& shared, u64 offset) {
    Raw operands[OPERANDS];
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) operands[i] = __ldcg(reinterpret_cast<const Raw*>(shared.sources[i] + offset));
    Raw out = fold<Element, Op, OPERANDS, Raw>(operands);
#pragma unroll
    for (int rank = 0; rank < WORLD; rank++) *reinterpret_cast<Raw*>(shared.targets[rank] + offset) = out;
}

// Folds so many bytes that begin where the pointers point to, by threads from `first` on, `step` apart.
__device__ void fold_span(const Shared& shared, u64 bytes, u64 first, u64 step) {
    // All must be off the same way, or nothing can be done by vectors.
    u64 off = reinterpret_cast<u64>(shared.sources[0]) & (VECTOR - 1);
    bool is_even = true;
#pragma unroll
    for (int i = 0; i < OPERANDS; i++) is_even &= (reinterpret_cast<u64>(shared.sources[i]) & (VECTOR - 1)) == off;
#pragma unroll
    for (int i = 0; i < WORLD; i++) is_even &= (reinterpret_cast<u64>(shared.targets[i]) & (VECTOR - 1)) == off;
    if (!is_even) {
#pragma unroll 1
        for (u64 at = first * sizeof(Raw); at < bytes; at += step * sizeof(Raw)) fold_one(shared, at);
        return;
    }
    u64 head = (VECTOR - off) & (VECTOR - 1);
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

// In place: each rank folds its part out of everyone's source into everyone's target.
__device__ bool run_direct(const Params& p, Shared& shared, u32& epoch) {
    u64 first = u64(blockIdx.x) * THREADS + threadIdx.x;
    fold_span(shared, p.fold_count * sizeof(Raw), first, u64(gridDim.x) * THREADS);
    return meet(p, ++epoch);
}

// Through the staging areas. A block has a place of its own in each of them, and goes through the chunks that are its.
// Rank r folds the r-th piece of each chunk.
__device__ bool run_staged(const Params& p, Shared& shared, u32& epoch) {
    constexpr u64 GRAIN = VECTOR * WORLD;
    u64 total = p.count * sizeof(Raw);
    u64 share = ((total + gridDim.x - 1) / gridDim.x + GRAIN - 1) / GRAIN * GRAIN;
    u64 room = RF_STAGING_BYTES / gridDim.x / GRAIN * GRAIN;
    if (share < room) room = share;
    // Mail may be overwritten when all have met once more, so a block with nothing to do meets the others, too.
    if (blockIdx.x * room >= total) return meet(p, ++epoch);
    char* in = p.arenas[p.me] + RF_STAGING + blockIdx.x * room;
    u64 out_offset = RF_STAGING + RF_STAGING_BYTES + blockIdx.x * room;
#pragma unroll 1
    for (u64 start = blockIdx.x * room; start < total; start += gridDim.x * room) {
        u64 bytes = total - start < room ? total - start : room;
        copy(in, p.source + start, bytes);
        if (!meet(p, ++epoch)) return false;
        if constexpr (IS_GATHER) {
#pragma unroll 1
            for (int rank = 0; rank < WORLD; rank++) {
                copy(p.target + rank * total + start, p.arenas[rank] + RF_STAGING + blockIdx.x * room, bytes);
            }
            if (!meet(p, ++epoch)) return false;
        } else {
            u64 piece = ((bytes + WORLD - 1) / WORLD + VECTOR - 1) / VECTOR * VECTOR;
            u64 begin = p.me * piece < bytes ? p.me * piece : bytes;
            u64 end = begin + piece < bytes ? begin + piece : bytes;
            if (threadIdx.x < WORLD) {
                char* arena = p.arenas[threadIdx.x];
                shared.sources[threadIdx.x] = arena + RF_STAGING + blockIdx.x * room + begin;
                shared.targets[threadIdx.x] = arena + out_offset + begin;
            }
            __syncthreads();
            fold_span(shared, end - begin, threadIdx.x, THREADS);
            if (!meet(p, ++epoch)) return false;
            copy(p.target + start, p.arenas[p.me] + out_offset, bytes);
        }
    }
    return true;
}

// Tells all where this rank's tensors are, and learns where theirs are.
__device__ bool exchange(const Params& p, Shared& shared, u32& epoch) {
    u32 peer = threadIdx.x;
    int is_other = 0;
    if (peer < WORLD && peer != p.me) {
        // All blocks write the same here.
        auto* mail = reinterpret_cast<volatile Mail*>(p.arenas[peer] + RF_MAIL) + p.me;
        mail->source_code = p.source_code;
        mail->target_code = p.target_code;
        mail->fingerprint = p.fingerprint;
    }
    if (!meet(p, ++epoch)) return false;
    if (peer < WORLD) {
        u64 source_code = p.source_code, target_code = p.target_code;
        if (peer != p.me) {
            auto* mail = reinterpret_cast<volatile const Mail*>(p.arenas[p.me] + RF_MAIL) + peer;
            source_code = mail->source_code;
            target_code = mail->target_code;
            if (mail->fingerprint != p.fingerprint) {
                mscclpp::detail::report(p.page, DeviceError::Argument, peer, 0, 0);
                is_other = 1;
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
    return __syncthreads_or(is_other) == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ringfold_bulk(const __grid_constant__ Params p) {
    __shared__ Shared shared;
    auto* epochs = reinterpret_cast<u32*>(p.arenas[p.me] + RF_EPOCHS);
    u32 epoch = epochs[blockIdx.x];
    // Set by threads that have met the others since.
    if (threadIdx.x == 0) shared.is_staged = 0;
    if (!exchange(p, shared, epoch)) return;
    if (!(shared.is_staged ? run_staged(p, shared, epoch) : run_direct(p, shared, epoch))) return;
    if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;
}

// Eight bytes of a tensor, fewer at its end.
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

// Waits for everyone's packet of a number. False if the wait was given up.
__device__ bool receive(const Params& p, u32 half, u64 index, u32 flag, u32 flag_too, uint2 own, uint2 (&operands)[WORLD]) {
    int waited_for = -1, odd = 0;
    Patience patience(p.page, DeviceError::Packet, -1, -1);
    while (true) {
        int missing = -1;
        bool is_other = false;
#pragma unroll
        for (int rank = 0; rank < WORLD; rank++) {
            uint4 packet = make_uint4(own.x, flag, own.y, flag_too);
            if (rank != p.me) packet = load_volatile(packet_at(p.arenas[p.me], half, rank, index));
            operands[rank] = make_uint2(packet.x, packet.z);
            if (packet.y != flag || packet.w != flag_too) {
                missing = rank;
                is_other = packet.y == flag;
            }
        }
        if (missing < 0) return true;
        if (missing != waited_for) {
            waited_for = missing;
            patience = Patience(p.page, DeviceError::Packet, missing, -1);
        }
        // Half a packet does not stay half of one: theirs is the packet of another call.
        odd = is_other ? odd + 1 : 0;
        if (odd == ODD_LOOKS_MAX) mscclpp::detail::report(p.page, DeviceError::Argument, missing, 0, 0);
        if (patience.isOver()) return false;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ringfold_small(const __grid_constant__ Params p) {
    auto* sequence = reinterpret_cast<volatile u64*>(p.arenas[p.me]);
    auto* ended = reinterpret_cast<u32*>(p.arenas[p.me]) + 2;
    u64 number = *sequence + 1;
    u32 half = u32(number & 1);
    // Never 0, which is what is there at first. The second flag tells calls apart that do not fit together.
    u32 flag = u32(number) * 2 + 1;
    u32 flag_too = flag ^ u32(p.fingerprint ^ (p.fingerprint >> 32));
    u64 total = p.count * sizeof(Raw);
    u64 packets = (total + 7) / 8, first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (u64 index = first; index < packets; index += step) {
        uint2 own = load_packet(p.source, index * 8, total);
#pragma unroll
        for (int rank = 0; rank < WORLD; rank++) {
            if (rank != p.me) {
                store_volatile(packet_at(p.arenas[rank], half, p.me, index), make_uint4(own.x, flag, own.y, flag_too));
            }
        }
    }
#pragma unroll 1
    for (u64 index = first; index < packets; index += step) {
        uint2 operands[WORLD];
        if (!receive(p, half, index, flag, flag_too, load_packet(p.source, index * 8, total), operands)) break;
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
        // Whoever is the last of all blocks: all have read the number by now.
        if (gridDim.x == 1 || atomicAdd(ended, 1u) == gridDim.x - 1) {
            *ended = 0;
            *sequence = number;
        }
    }
}
