// Sends and receives between two ranks.
//
// `ringfold_small`: the sender writes packets that contain their own flags, and ends. A pair has room for two messages.
// Larger messages: the sender announces where its data is, and waits until the receiver has it. The receiver waits for that
// announcement and reads the data.
//   `ringfold_meet`: announces and waits, with one thread for each transfer: transfers may wait for long, and in any number,
//     without keeping others from running.
//   `ringfold_pull`: reads the data in place if it is in registered memory. Nothing waits here then, so it may use the whole
//     device. Otherwise a few blocks take the data from the sender's staging area, which `ringfold_push` fills.
//
// Elements are bytes. Macros set by the host: RF_TRANSFER_BLOCKS, those of `ringfold_push`, and the offsets in the arena.
#include "arena.cuh"

using namespace ringfold;

// The state of the transfers with another rank, in each rank's arena. All numbers count messages, or pieces of them.
struct Pair {
    // Written by the other rank: its last announcement, the last of our messages that it has, and the pieces of staging areas.
    u64 code, bytes, fingerprint;
    u32 announced, ended, consumed, reserved;
    u32 filled[RF_TRANSFER_BLOCKS], emptied[RF_TRANSFER_BLOCKS];
    // Written by this rank's kernels.
    u32 sent, received, small_sent, small_received;
    u32 sent_blocks, received_blocks, reserved_blocks[2];
    u32 pushed[RF_TRANSFER_BLOCKS], pulled[RF_TRANSFER_BLOCKS];
};
static_assert(sizeof(Pair) <= RF_PAIR_BYTES, "the layout's size of a pair");

struct Transfer {
    char* memory;
    u64 bytes;
    u64 code;  // of a send: the position in registered memory; 0 if it is not registered
    u64 fingerprint;
    u32 peer;
    u32 steps;
};

constexpr u32 SEND = 1, ANNOUNCE = 2, AWAIT = 4;

struct Params {
    Transfer transfers[RF_TRANSFERS_MAX];
    Links links;
};

__device__ __forceinline__ volatile Pair* pair_at(const Links& links, u32 of, u32 with) {
    return reinterpret_cast<volatile Pair*>(links.arenas[of] + RF_PAIRS + u64(with) * RF_PAIR_BYTES);
}

template <class Word>
__device__ __forceinline__ void copy_words(char* to, const char* from, u64 bytes, u64 first, u64 step) {
#pragma unroll 4
    for (u64 at = first * sizeof(Word); at < bytes; at += step * sizeof(Word)) {
        *reinterpret_cast<Word*>(to + at) = __ldcg(reinterpret_cast<const Word*>(from + at));
    }
}

// Copies bytes of any type; this thread does every `step`-th word or vector. Both ends may be aligned differently.
__device__ void copy_bytes(char* to, const char* from, u64 bytes, u64 first, u64 step) {
    u64 all = reinterpret_cast<u64>(to) | reinterpret_cast<u64>(from) | bytes;
    if (((reinterpret_cast<u64>(to) ^ reinterpret_cast<u64>(from)) & (VECTOR - 1)) == 0) {
        copy(to, from, bytes, first, step);
    } else if ((all & 7) == 0) {
        copy_words<u64>(to, from, bytes, first, step);
    } else if ((all & 3) == 0) {
        copy_words<u32>(to, from, bytes, first, step);
    } else if ((all & 1) == 0) {
        copy_words<unsigned short>(to, from, bytes, first, step);
    } else {
        copy_words<unsigned char>(to, from, bytes, first, step);
    }
}

__device__ __forceinline__ u32* word(volatile u32& at) { return const_cast<u32*>(&at); }

// Waits until a number that the peer counts up has come to `wanted`.
__device__ bool await(const Links& links, volatile u32& number, u32 wanted, u32 peer) {
    SpinGuard guard(links.page, DeviceError::Signal, peer, -1, links.timeout);
    while (int(load_acquire(word(number)) - wanted) < 0) {
        if (guard.shouldStop()) return false;
    }
    return true;
}

// For all threads of the block.
__device__ bool await_all(const Links& links, volatile u32& number, u32 wanted, u32 peer) {
    int should_stop = threadIdx.x == 0 && !await(links, number, wanted, peer);
    return __syncthreads_or(should_stop) == 0;
}

// Whether this is the last block of a transfer to come here; all its writes are visible then.
__device__ bool is_last(volatile u32& blocks) {
    __syncthreads();
    if (threadIdx.x != 0) return false;
    __threadfence();
    if (gridDim.x > 1 && atomicAdd(word(blocks), 1u) != gridDim.x - 1) return false;
    blocks = 0;
    __threadfence();
    return true;
}

extern "C" __global__ void __launch_bounds__(32, 1) ringfold_meet(const __grid_constant__ Params p) {
    const Links& links = p.links;
    const Transfer& transfer = p.transfers[blockIdx.x];
    if (threadIdx.x != 0) return;
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    if (transfer.steps & SEND) {
        u32 number = mine->sent + 1;
        if (transfer.steps & ANNOUNCE) {
            theirs->code = transfer.code;
            theirs->bytes = transfer.bytes;
            theirs->fingerprint = transfer.fingerprint;
            store_release(word(theirs->announced), number);
        }
        if (transfer.steps & AWAIT && await(links, mine->ended, number, transfer.peer)) mine->sent = number;
        return;
    }
    if (!await(links, mine->announced, mine->received + 1, transfer.peer)) return;
    if (mine->fingerprint != transfer.fingerprint || mine->bytes != transfer.bytes) {
        mscclpp::detail::report(links.page, DeviceError::Argument, transfer.peer, 0, 0);
    }
}

// The pieces of a message that a block moves through its part of the staging area. `move` gets the piece, its place in the
// staging area, and its number.
template <class Move>
__device__ __forceinline__ bool by_pieces(u64 bytes, u64 staging, u32& number, Move move) {
    constexpr u64 PIECE = RF_TRANSFER_STAGING_BYTES / RF_TRANSFER_BLOCKS / 2;
#pragma unroll 1
    for (u64 start = blockIdx.x * PIECE; start < bytes; start += RF_TRANSFER_BLOCKS * PIECE) {
        number++;
        u64 length = bytes - start < PIECE ? bytes - start : PIECE;
        if (!move(start, length, staging + (blockIdx.x * 2 + (number & 1)) * PIECE)) return false;
    }
    return true;
}

__device__ __forceinline__ u64 staging_at(u32 to) { return RF_TRANSFER_STAGING + u64(to) * RF_TRANSFER_STAGING_BYTES; }

extern "C" __global__ void __launch_bounds__(THREADS, 1) ringfold_push(const __grid_constant__ Params p) {
    const Links& links = p.links;
    const Transfer& transfer = p.transfers[0];
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    u32 number = mine->pushed[blockIdx.x];
    auto push = [&](u64 start, u64 length, u64 place) {
        if (!await_all(links, mine->emptied[blockIdx.x], number - 2, transfer.peer)) return false;
        copy_bytes(links.arenas[links.me] + place, transfer.memory + start, length, threadIdx.x, THREADS);
        __syncthreads();
        if (threadIdx.x == 0) store_release(word(theirs->filled[blockIdx.x]), number);
        return true;
    };
    if (by_pieces(transfer.bytes, staging_at(transfer.peer), number, push) && threadIdx.x == 0) {
        mine->pushed[blockIdx.x] = number;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ringfold_pull(const __grid_constant__ Params p) {
    const Links& links = p.links;
    const Transfer& transfer = p.transfers[0];
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    u32 message = mine->received + 1;
    bool is_here = load_acquire(word(mine->announced)) == message && mine->bytes == transfer.bytes;
    // Otherwise the wait for it has failed.
    if (!is_here) return;
    if (u64 code = mine->code) {
        u64 first = u64(blockIdx.x) * THREADS + threadIdx.x;
        copy_bytes(transfer.memory, registered_at(links, transfer.peer, code), transfer.bytes, first, u64(gridDim.x) * THREADS);
    } else if (blockIdx.x < RF_TRANSFER_BLOCKS) {
        u32 number = mine->pulled[blockIdx.x];
        auto pull = [&](u64 start, u64 length, u64 place) {
            if (!await_all(links, mine->filled[blockIdx.x], number, transfer.peer)) return false;
            copy_bytes(transfer.memory + start, links.arenas[transfer.peer] + place, length, threadIdx.x, THREADS);
            __syncthreads();
            if (threadIdx.x == 0) store_release(word(theirs->emptied[blockIdx.x]), number);
            return true;
        };
        if (!by_pieces(transfer.bytes, staging_at(links.me), number, pull)) return;
        if (threadIdx.x == 0) mine->pulled[blockIdx.x] = number;
    }
    if (is_last(mine->received_blocks)) {
        mine->received = message;
        store_release(word(theirs->ended), message);
    }
}

__device__ __forceinline__ uint4* small_packet(char* arena, u32 from, u32 message, u64 index) {
    return reinterpret_cast<uint4*>(arena + RF_TRANSFER_PACKETS) + (u64(from) * 2 + (message & 1)) * RF_TRANSFER_PACKETS_MAX + index;
}

// Each row of blocks does one transfer.
extern "C" __global__ void __launch_bounds__(THREADS, 1) ringfold_small(const __grid_constant__ Params p) {
    const Links& links = p.links;
    const Transfer& transfer = p.transfers[blockIdx.y];
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    bool is_send = transfer.steps & SEND;
    u32 message = (is_send ? mine->small_sent : mine->small_received) + 1;
    // Never 0, the initial content. The second flag detects transfers that differ.
    u32 flag = message * 2 + 1, check_flag = flag ^ u32(transfer.fingerprint ^ (transfer.fingerprint >> 32));
    u64 packets = (transfer.bytes + 7) / 8, first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
    if (is_send) {
        if (!await_all(links, mine->consumed, message - 2, transfer.peer)) return;
        char* arena = links.arenas[transfer.peer];
#pragma unroll 1
        for (u64 index = first; index < packets; index += step) {
            uint2 value = load_packet(transfer.memory, index * 8, transfer.bytes);
            store_volatile(small_packet(arena, links.me, message, index), make_uint4(value.x, flag, value.y, check_flag));
        }
        if (is_last(mine->sent_blocks)) mine->small_sent = message;
        return;
    }
    int should_stop = 0, mismatches = 0;
    char* arena = links.arenas[links.me];
#pragma unroll 1
    for (u64 index = first; index < packets && !should_stop; index += step) {
        SpinGuard guard(links.page, DeviceError::Packet, transfer.peer, -1, links.timeout);
        while (true) {
            uint4 packet = load_volatile(small_packet(arena, transfer.peer, message, index));
            if (packet.y == flag && packet.w == check_flag) {
                store_packet(transfer.memory, index * 8, transfer.bytes, make_uint2(packet.x, packet.z));
                break;
            }
            mismatches = packet.y == flag ? mismatches + 1 : 0;
            if (mismatches == MISMATCH_POLLS_MAX) mscclpp::detail::report(links.page, DeviceError::Argument, transfer.peer, 0, 0);
            if (guard.shouldStop()) {
                should_stop = 1;
                break;
            }
        }
    }
    if (__syncthreads_or(should_stop)) return;
    if (is_last(mine->received_blocks)) {
        mine->small_received = message;
        store_release(word(theirs->consumed), message);
    }
}
