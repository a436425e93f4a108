// Every rank gives a stretch of memory to each rank, and takes one from each: reduce-scatter and reduce, which fold what they
// take, and all-gather, all-to-all, broadcast, gather, scatter and barrier, which store it.
//
// `ringfold_small`: in packets that contain their own flags. Each pair of ranks exchanges at least one packet in each call,
//   so that a rank that has all packets of a call knows that all ranks have started it, and so have ended the previous one.
// `ringfold_bulk`: each rank reads what the others give. If all of that is in registered memory, it is read in place;
//   otherwise it goes through staging areas, in rounds small enough to stay in the cache. Consecutive rounds use different
//   areas, so that one barrier is enough for each.
//
// Macros set by the host: RF_FOLD, whether what is taken is folded into the first stretch.
#include "arena.cuh"

using namespace ringfold;

constexpr bool IS_FOLD = RF_FOLD;
// The code of an empty stretch, which is never read.
constexpr u64 NOTHING = ~0ull;

struct Params {
    const char* give[WORLD];  // what each rank gets
    u64 give_bytes[WORLD];
    u64 give_codes[WORLD];  // their positions in registered memory: slot + 1 and offset; all 0 if one is not registered
    char* take[WORLD];      // where to store what each rank gives; folded: only the first
    u64 take_bytes[WORLD];
    u64 is_alike;           // whether all ranks get the same stretch of this rank
    Links links;
};

struct Mailbox {
    u64 code, bytes, most, fingerprint;
};

struct Shared {
    const char* sources[WORLD];
    u64 most[WORLD];  // the largest stretch that each rank gives
    int is_staged;
};

__device__ __forceinline__ u64 most_given(const Params& p) {
    u64 most = 0;
#pragma unroll
    for (int rank = 0; rank < WORLD; rank++) most = p.give_bytes[rank] > most ? p.give_bytes[rank] : most;
    return most;
}

// Tells all ranks the positions of the stretches.
__device__ bool meet(const Params& p, u32& epoch) {
    const Links& links = p.links;
    u32 peer = threadIdx.x;
    u64 most = most_given(p);
    if (peer < WORLD && peer != links.me) {
        // All blocks write the same values.
        auto* mailbox = mailbox_at<Mailbox>(links.arenas[peer], links.me);
        mailbox->code = p.give_codes[peer];
        mailbox->bytes = p.give_bytes[peer];
        mailbox->most = most;
        mailbox->fingerprint = links.fingerprint;
    }
    return barrier(links, ++epoch);
}

// Finds the stretches of all ranks, which have met.
__device__ bool find(const Params& p, Shared& shared) {
    const Links& links = p.links;
    u32 peer = threadIdx.x;
    int is_mismatch = 0;
    u64 most = most_given(p);
    if (threadIdx.x == 0) shared.is_staged = 0;
    __syncthreads();
    if (peer < WORLD) {
        u64 code = p.give_codes[peer];
        shared.most[peer] = most;
        shared.sources[peer] = p.give[peer];
        if (peer != links.me) {
            auto* mailbox = mailbox_at<Mailbox>(links.arenas[links.me], peer);
            code = mailbox->code;
            shared.most[peer] = mailbox->most;
            if (mailbox->fingerprint != links.fingerprint || mailbox->bytes != p.take_bytes[peer]) {
                mscclpp::detail::report(links.page, DeviceError::Argument, peer, 0, 0);
                is_mismatch = 1;
            } else if (code != 0 && code != NOTHING) {
                shared.sources[peer] = registered_at(links, peer, code);
            }
        }
        if (code == 0) shared.is_staged = 1;
    }
    return __syncthreads_or(is_mismatch) == 0;
}

// Folds or stores what is in the sources; this thread does the vectors `first`, `first + step` and so on.
__device__ void take_all(const Params& p, const char* const* sources, u64 start, u64 most, u64 first, u64 step) {
    auto length = [&](u64 bytes) { return start >= bytes ? 0 : bytes - start < most ? bytes - start : most; };
    u32 me = p.links.me;
    if constexpr (IS_FOLD) {
        char* target = p.take[0] + start;
        fold_range<WORLD, 1>(sources, &target, length(p.take_bytes[me]), first, step);
    } else {
#pragma unroll 1
        for (u32 k = 1; k <= WORLD; k++) {
            // Not all ranks read from the same one at the same time.
            u32 rank = me + k < WORLD ? me + k : me + k - WORLD;
            if (rank == me && p.give[me] == p.take[me]) continue;
            if (u64 bytes = length(p.take_bytes[rank])) copy(p.take[rank] + start, sources[rank], bytes, first, step);
        }
    }
}

// In place: each rank reads what the others give.
__device__ bool run_direct(const Params& p, Shared& shared, u32& epoch) {
    u64 first = u64(blockIdx.x) * THREADS + threadIdx.x;
    take_all(p, shared.sources, 0, ~0ull, first, u64(gridDim.x) * THREADS);
    return p.links.phase != WHOLE || barrier(p.links, ++epoch);
}

// Through the staging areas. Each block has its own chunk of each area, with a piece for each rank, or one for all.
__device__ bool run_staged(const Params& p, Shared& shared, u32& epoch) {
    const Links& links = p.links;
    u32 blocks = staging_blocks(links);
    if (blockIdx.x >= blocks) return true;
    u64 chunk = RF_STAGING_BYTES / blocks / (VECTOR * WORLD) * (VECTOR * WORLD);
    u64 piece = p.is_alike ? chunk : chunk / WORLD;
    u64 total = 0;
#pragma unroll
    for (int rank = 0; rank < WORLD; rank++) total = shared.most[rank] > total ? shared.most[rank] : total;
    // Stretches of little data are divided among all blocks.
    u64 share = ((total + blocks - 1) / blocks + VECTOR - 1) / VECTOR * VECTOR;
    if (share < piece) piece = share;
    // Mailboxes may be overwritten after one more barrier, so idle blocks take part, too.
    if (blockIdx.x * piece >= total) return barrier(links, ++epoch);
    u64 area = 0;
#pragma unroll 1
    for (u64 start = blockIdx.x * piece; start < total; start += blocks * piece, area ^= 1) {
        u64 offset = RF_STAGING + area * RF_STAGING_BYTES + blockIdx.x * chunk;
#pragma unroll 1
        for (u32 rank = 0; rank < WORLD; rank++) {
            if (rank == links.me || start >= p.give_bytes[rank]) continue;
            u64 bytes = p.give_bytes[rank] - start < piece ? p.give_bytes[rank] - start : piece;
            char* to = links.arenas[links.me] + offset + (p.is_alike ? 0 : rank * piece);
            copy(to, p.give[rank] + start, bytes, threadIdx.x, THREADS);
            if (p.is_alike) break;
        }
        if (!barrier(links, ++epoch)) return false;
        if (threadIdx.x < WORLD) {
            u32 rank = threadIdx.x;
            const char* staged = links.arenas[rank] + offset + (p.is_alike ? 0 : links.me * piece);
            shared.sources[rank] = rank == links.me ? p.give[rank] + start : staged;
        }
        __syncthreads();
        take_all(p, shared.sources, start, piece, threadIdx.x, THREADS);
    }
    return true;
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

__device__ __forceinline__ u64 packets_of(u64 bytes) {
    return bytes > 8 ? (bytes + 7) / 8 : 1;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    ringfold_small(const __grid_constant__ Params p) {
    const Links& links = p.links;
    PacketCall call(links);
    u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
#pragma unroll 1
    for (u32 rank = 0; rank < WORLD; rank++) {
        if (rank == links.me) continue;
        u64 bytes = p.give_bytes[rank];
#pragma unroll 1
        for (u64 index = first; index < packets_of(bytes); index += step) {
            call.send(links, rank, index, load_packet(p.give[rank], index * 8, bytes));
        }
    }
    u64 packets = 1;
#pragma unroll
    for (int rank = 0; rank < WORLD; rank++) packets = packets_of(p.take_bytes[rank]) > packets ? packets_of(p.take_bytes[rank]) : packets;
#pragma unroll 1
    for (u64 index = first; index < packets; index += step) {
        u32 wanted = 0;
#pragma unroll
        for (int rank = 0; rank < WORLD; rank++) {
            if (rank != links.me && index < packets_of(p.take_bytes[rank])) wanted |= 1u << rank;
        }
        uint2 operands[WORLD];
        uint2 own = load_packet(p.give[links.me], index * 8, p.give_bytes[links.me]);
        if (!receive(links, call, index, wanted, own, operands)) break;
        if constexpr (IS_FOLD) {
            store_packet(p.take[0], index * 8, p.take_bytes[links.me], fold<Element, Op, WORLD, uint2>(operands));
        } else {
#pragma unroll
            for (int rank = 0; rank < WORLD; rank++) {
                store_packet(p.take[rank], index * 8, p.take_bytes[rank], operands[rank]);
            }
        }
    }
    call.end(links);
}
