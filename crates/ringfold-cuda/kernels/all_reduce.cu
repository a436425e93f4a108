// All-reduce between ranks that have mapped each other's memory.
//
// `ringfold_small`: every rank sends its data to all others in packets that contain their own flags, and folds all of
//   it. Consecutive calls use different halves of the packets. A rank that has all packets of a call knows that all
//   ranks have started it, and so have ended the previous one, whose half the next call may overwrite.
// `ringfold_bulk`: each rank folds a part for all. Blocks of the same index synchronise by barriers; before the first
//   one each rank writes where its tensors are. If all are in registered memory, they are read and written in place;
//   otherwise all data goes through staging areas, in rounds small enough to stay in the cache.
#include "arena.cuh"

using namespace ringfold;

struct Params {
    char* source;
    char* target;
    u64 count;        // elements
    u64 fold_start;   // the part that this rank folds, in elements
    u64 fold_count;
    u64 source_code;  // position of source and target in registered memory: slot + 1 and offset; 0 if not registered
    u64 target_code;
    Links links;
};

struct Mailbox {
    u64 source_code, target_code, fingerprint, reserved;
};

struct Shared {
    const char* sources[WORLD];
    char* targets[WORLD];
    int is_staged;
};

// In place: each rank folds its part from all sources into all targets.
__device__ bool run_direct(const Params& p, Shared& shared, u32& epoch) {
    u64 first = u64(blockIdx.x) * THREADS + threadIdx.x;
    fold_range<WORLD, WORLD>(shared.sources, shared.targets, p.fold_count * sizeof(Raw), first, u64(gridDim.x) * THREADS);
    return p.links.phase != WHOLE || barrier(p.links, ++epoch);
}

// Through the staging areas. Each block has its own chunk of each area, and handles every so-many-th chunk of the data.
// Rank r folds the r-th piece of each chunk.
__device__ bool run_staged(const Params& p, Shared& shared, u32& epoch) {
    const Links& links = p.links;
    constexpr u64 GRAIN = VECTOR * WORLD;
    u32 blocks = staging_blocks(links);
    if (blockIdx.x >= blocks) return true;
    u64 total = p.count * sizeof(Raw);
    u64 share = ((total + blocks - 1) / blocks + GRAIN - 1) / GRAIN * GRAIN;
    u64 chunk = RF_STAGING_BYTES / blocks / GRAIN * GRAIN;
    if (share < chunk) chunk = share;
    // Mailboxes may be overwritten after one more barrier, so idle blocks take part, too.
    if (blockIdx.x * chunk >= total) return barrier(links, ++epoch);
    char* in = links.arenas[links.me] + RF_STAGING + blockIdx.x * chunk;
    u64 out_offset = RF_STAGING + RF_STAGING_BYTES + blockIdx.x * chunk;
#pragma unroll 1
    for (u64 start = blockIdx.x * chunk; start < total; start += blocks * chunk) {
        u64 bytes = total - start < chunk ? total - start : chunk;
        copy(in, p.source + start, bytes, threadIdx.x, THREADS);
        if (!barrier(links, ++epoch)) return false;
        u64 piece = ((bytes + WORLD - 1) / WORLD + VECTOR - 1) / VECTOR * VECTOR;
        u64 begin = links.me * piece < bytes ? links.me * piece : bytes;
        u64 end = begin + piece < bytes ? begin + piece : bytes;
        if (threadIdx.x < WORLD) {
            char* arena = links.arenas[threadIdx.x];
            shared.sources[threadIdx.x] = arena + RF_STAGING + blockIdx.x * chunk + begin;
            shared.targets[threadIdx.x] = arena + out_offset + begin;
        }
        __syncthreads();
        fold_range<WORLD, WORLD>(shared.sources, shared.targets, end - begin, threadIdx.x, THREADS);
        if (!barrier(links, ++epoch)) return false;
        copy(p.target + start, links.arenas[links.me] + out_offset, bytes, threadIdx.x, THREADS);
    }
    return true;
}

// Tells all ranks the positions of the tensors.
__device__ bool meet(const Params& p, u32& epoch) {
    const Links& links = p.links;
    u32 peer = threadIdx.x;
    if (peer < WORLD && peer != links.me) {
        // All blocks write the same values.
        auto* mailbox = mailbox_at<Mailbox>(links.arenas[peer], links.me);
        mailbox->source_code = p.source_code;
        mailbox->target_code = p.target_code;
        mailbox->fingerprint = links.fingerprint;
    }
    return barrier(links, ++epoch);
}

// Finds the tensors of all ranks, which have met.
__device__ bool find(const Params& p, Shared& shared) {
    const Links& links = p.links;
    u32 peer = threadIdx.x;
    int is_mismatch = 0;
    if (threadIdx.x == 0) shared.is_staged = 0;
    __syncthreads();
    if (peer < WORLD) {
        u64 source_code = p.source_code, target_code = p.target_code;
        if (peer != links.me) {
            auto* mailbox = mailbox_at<Mailbox>(links.arenas[links.me], peer);
            source_code = mailbox->source_code;
            target_code = mailbox->target_code;
            if (mailbox->fingerprint != links.fingerprint) {
                mscclpp::detail::report(links.page, DeviceError::Argument, peer, 0, 0);
                is_mismatch = 1;
            }
        }
        if (source_code == 0 || target_code == 0) {
            shared.is_staged = 1;
        } else {
            const char* source = peer == links.me ? p.source : registered_at(links, peer, source_code);
            char* target = peer == links.me ? p.target : registered_at(links, peer, target_code);
            shared.sources[peer] = source + p.fold_start * sizeof(Raw);
            shared.targets[peer] = target + p.fold_start * sizeof(Raw);
        }
    }
    return __syncthreads_or(is_mismatch) == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ringfold_bulk(const __grid_constant__ Params p) {
    __shared__ Shared shared;
    auto* epochs = reinterpret_cast<u32*>(p.links.arenas[p.links.me] + RF_EPOCHS);
    u32 epoch = epochs[blockIdx.x];
    u32 phase = p.links.phase;
    if (phase == MEET && threadIdx.x == 0) *met(p.links) = 0;
    bool is_ok = phase == WHOLE || phase == MEET ? meet(p, epoch) : *met(p.links) != 0;
    if (phase == MEET && is_ok && threadIdx.x == 0) *met(p.links) = 1;
    if (is_ok && (phase == WHOLE || phase == WORK)) {
        is_ok = find(p, shared) && (shared.is_staged ? run_staged(p, shared, epoch) : run_direct(p, shared, epoch));
    }
    if (is_ok && phase == PART) is_ok = barrier(p.links, ++epoch);
    if (!is_ok) return;
    if (threadIdx.x == 0) epochs[blockIdx.x] = epoch;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ringfold_small(const __grid_constant__ Params p) {
    const Links& links = p.links;
    PacketCall call(links);
    u64 total = p.count * sizeof(Raw);
    u64 packets = (total + 7) / 8, first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (u64 index = first; index < packets; index += step) {
        uint2 own = load_packet(p.source, index * 8, total);
#pragma unroll
        for (int rank = 0; rank < WORLD; rank++) {
            if (rank != links.me) call.send(links, rank, index, own);
        }
    }
#pragma unroll 1
    for (u64 index = first; index < packets; index += step) {
        uint2 operands[WORLD];
        uint2 own = load_packet(p.source, index * 8, total);
        if (!receive(links, call, index, ALL_RANKS ^ 1u << links.me, own, operands)) break;
        store_packet(p.target, index * 8, total, fold<Element, Op, WORLD, uint2>(operands));
    }
    call.end(links);
}
