// Sends and receives between two ranks.
//
// Small messages: the sender writes packets that contain their own flags, and ends. A pair has room for two messages.
// Larger messages: the sender announces where its data is, and waits until the receiver has it. The receiver waits for that
// announcement and reads the data.
//   `ringfold_meet`: announces and waits, with one thread for each transfer: transfers may wait for long without keeping others
//     from running.
//   `ringfold_pull`: reads the data in place if it is in registered memory. Nothing waits here then, so it may use the whole
//     device. Otherwise a few blocks take the data from the sender's staging area, which `ringfold_push` fills.
//   `ringfold_batch`: all steps of transfers that may wait for each other, in one kernel. Kernels of several streams would not
//     do: a stream may have to wait for another one's kernels, since a process has few hardware queues, two under MPS.
//
// Elements are bytes. Macros set by the host: RF_TRANSFER_BLOCKS, the parts of a staging area, and the offsets in the arena.
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

constexpr u32 SEND = 1, ANNOUNCE = 2, AWAIT = 4, SMALL = 8;

template <int MAX>
struct TransferParams {
    Transfer transfers[MAX];
    Links links;
};
using Params = TransferParams<RF_TRANSFERS_MAX>;

// The blocks that do a transfer together, and the number of this one.
struct Team {
    u32 block, blocks;

    __device__ __forceinline__ u64 first() const { return u64(block) * blockDim.x + threadIdx.x; }
    __device__ __forceinline__ u64 step() const { return u64(blocks) * blockDim.x; }
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
__device__ bool is_last(volatile u32& ended, const Team& team) {
    __syncthreads();
    if (threadIdx.x != 0) return false;
    __threadfence();
    if (team.blocks > 1 && atomicAdd(word(ended), 1u) != team.blocks - 1) return false;
    ended = 0;
    __threadfence();
    return true;
}

__device__ void announce(const Links& links, const Transfer& transfer) {
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    theirs->code = transfer.code;
    theirs->bytes = transfer.bytes;
    theirs->fingerprint = transfer.fingerprint;
    store_release(word(theirs->announced), pair_at(links, links.me, transfer.peer)->sent + 1);
}

// Waits until the receiver has the announced message.
__device__ bool await_end(const Links& links, const Transfer& transfer) {
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    u32 number = mine->sent + 1;
    if (!await(links, mine->ended, number, transfer.peer)) return false;
    mine->sent = number;
    return true;
}

__device__ bool await_announcement(const Links& links, const Transfer& transfer) {
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    if (!await(links, mine->announced, mine->received + 1, transfer.peer)) return false;
    if (mine->fingerprint == transfer.fingerprint && mine->bytes == transfer.bytes) return true;
    mscclpp::detail::report(links.page, DeviceError::Argument, transfer.peer, 0, 0);
    return false;
}

// The pieces of a message that go through a part of the staging area. `move` gets the piece, its place in the staging area,
// and its number.
template <class Move>
__device__ __forceinline__ bool by_pieces(u64 bytes, u64 staging, u32 part, u32& number, Move move) {
    constexpr u64 PIECE = RF_TRANSFER_STAGING_BYTES / RF_TRANSFER_BLOCKS / 2;
#pragma unroll 1
    for (u64 start = part * PIECE; start < bytes; start += RF_TRANSFER_BLOCKS * PIECE) {
        number++;
        u64 length = bytes - start < PIECE ? bytes - start : PIECE;
        if (!move(start, length, staging + (part * 2 + (number & 1)) * PIECE)) return false;
    }
    return true;
}

__device__ __forceinline__ u64 staging_at(u32 to) { return RF_TRANSFER_STAGING + u64(to) * RF_TRANSFER_STAGING_BYTES; }

// Sends an announced message through the staging area.
__device__ bool push(const Links& links, const Transfer& transfer, const Team& team) {
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
#pragma unroll 1
    for (u32 part = team.block; part < RF_TRANSFER_BLOCKS; part += team.blocks) {
        u32 number = mine->pushed[part];
        auto push_piece = [&](u64 start, u64 length, u64 place) {
            if (!await_all(links, mine->emptied[part], number - 2, transfer.peer)) return false;
            copy_bytes(links.arenas[links.me] + place, transfer.memory + start, length, threadIdx.x, blockDim.x);
            __syncthreads();
            if (threadIdx.x == 0) store_release(word(theirs->filled[part]), number);
            return true;
        };
        if (!by_pieces(transfer.bytes, staging_at(transfer.peer), part, number, push_piece)) return false;
        __syncthreads();
        if (threadIdx.x == 0) mine->pushed[part] = number;
    }
    return true;
}

// Receives an announced message.
__device__ bool pull(const Links& links, const Transfer& transfer, const Team& team) {
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    u32 message = mine->received + 1;
    bool is_here = load_acquire(word(mine->announced)) == message && mine->bytes == transfer.bytes;
    // Otherwise the wait for it has failed.
    if (!is_here) return false;
    if (u64 code = mine->code) {
        copy_bytes(transfer.memory, registered_at(links, transfer.peer, code), transfer.bytes, team.first(), team.step());
    } else {
#pragma unroll 1
        for (u32 part = team.block; part < RF_TRANSFER_BLOCKS; part += team.blocks) {
            u32 number = mine->pulled[part];
            auto pull_piece = [&](u64 start, u64 length, u64 place) {
                if (!await_all(links, mine->filled[part], number, transfer.peer)) return false;
                copy_bytes(transfer.memory + start, links.arenas[transfer.peer] + place, length, threadIdx.x, blockDim.x);
                __syncthreads();
                if (threadIdx.x == 0) store_release(word(theirs->emptied[part]), number);
                return true;
            };
            if (!by_pieces(transfer.bytes, staging_at(links.me), part, number, pull_piece)) return false;
            __syncthreads();
            if (threadIdx.x == 0) mine->pulled[part] = number;
        }
    }
    if (is_last(mine->received_blocks, team)) {
        mine->received = message;
        store_release(word(theirs->ended), message);
    }
    return true;
}

__device__ __forceinline__ uint4* small_packet(char* arena, u32 from, u32 message, u64 index) {
    return reinterpret_cast<uint4*>(arena + RF_TRANSFER_PACKETS) + (u64(from) * 2 + (message & 1)) * RF_TRANSFER_PACKETS_MAX + index;
}

// Sends or receives a message in packets.
__device__ bool exchange_packets(const Links& links, const Transfer& transfer, const Team& team) {
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    bool is_send = transfer.steps & SEND;
    u32 message = (is_send ? mine->small_sent : mine->small_received) + 1;
    // Never 0, the initial content. The second flag detects transfers that differ.
    u32 flag = message * 2 + 1, check_flag = flag ^ u32(transfer.fingerprint ^ (transfer.fingerprint >> 32));
    u64 packets = (transfer.bytes + 7) / 8;
    if (is_send) {
        if (!await_all(links, mine->consumed, message - 2, transfer.peer)) return false;
        char* arena = links.arenas[transfer.peer];
#pragma unroll 1
        for (u64 index = team.first(); index < packets; index += team.step()) {
            uint2 value = load_packet(transfer.memory, index * 8, transfer.bytes);
            store_volatile(small_packet(arena, links.me, message, index), make_uint4(value.x, flag, value.y, check_flag));
        }
        if (is_last(mine->sent_blocks, team)) mine->small_sent = message;
        return true;
    }
    int should_stop = 0, mismatches = 0;
    char* arena = links.arenas[links.me];
#pragma unroll 1
    for (u64 index = team.first(); index < packets && !should_stop; index += team.step()) {
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
    if (__syncthreads_or(should_stop)) return false;
    if (is_last(mine->received_blocks, team)) {
        mine->small_received = message;
        store_release(word(theirs->consumed), message);
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(32, 1) ringfold_meet(const __grid_constant__ Params p) {
    const Transfer& transfer = p.transfers[blockIdx.x];
    if (threadIdx.x != 0) return;
    if (!(transfer.steps & SEND)) {
        await_announcement(p.links, transfer);
        return;
    }
    if (transfer.steps & ANNOUNCE) announce(p.links, transfer);
    if (transfer.steps & AWAIT) await_end(p.links, transfer);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ringfold_push(const __grid_constant__ Params p) {
    push(p.links, p.transfers[0], Team{blockIdx.x, gridDim.x});
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) ringfold_pull(const __grid_constant__ Params p) {
    pull(p.links, p.transfers[0], Team{blockIdx.x, gridDim.x});
}

// Each row of blocks does one transfer.
extern "C" __global__ void __launch_bounds__(THREADS, 1) ringfold_small(const __grid_constant__ Params p) {
    exchange_packets(p.links, p.transfers[blockIdx.y], Team{blockIdx.x, gridDim.x});
}

// For all threads of the block.
__device__ bool exchange(const Links& links, const Transfer& transfer, const Team& team) {
    if (transfer.steps & SMALL) return exchange_packets(links, transfer, team);
    if (!(transfer.steps & SEND)) {
        int should_stop = threadIdx.x == 0 && !await_announcement(links, transfer);
        return __syncthreads_or(should_stop) == 0 && pull(links, transfer, team);
    }
    if (threadIdx.x == 0 && team.block == 0) announce(links, transfer);
    if (!transfer.code && !push(links, transfer, team)) return false;
    int should_stop = threadIdx.x == 0 && team.block == 0 && !await_end(links, transfer);
    return __syncthreads_or(should_stop) == 0;
}

__device__ __forceinline__ bool is_chained(const Transfer& one, const Transfer& next) {
    return one.peer == next.peer && (one.steps & SEND) == (next.steps & SEND);
}

// Each row of blocks does a chain: the transfers with one rank in one direction, which are next to each other, in order.
extern "C" __global__ void __launch_bounds__(RF_BATCH_THREADS, 4)
ringfold_batch(const __grid_constant__ TransferParams<RF_BATCH_MAX> p) {
    u32 begin = 0, row = 0, end = 0;
    while (true) {
        do {
            end++;
        } while (end < RF_BATCH_MAX && p.transfers[end].memory && is_chained(p.transfers[begin], p.transfers[end]));
        if (row == blockIdx.y) break;
        begin = end;
        row++;
    }
    // A chain of several has one block: they are counted one by one.
    Team team{blockIdx.x, end - begin > 1 ? 1 : gridDim.x};
    if (team.block >= team.blocks) return;
#pragma unroll 1
    for (u32 i = begin; i < end; i++) {
        if (!exchange(p.links, p.transfers[i], team)) return;
        // The counts are read by all threads.
        __syncthreads();
    }
}
