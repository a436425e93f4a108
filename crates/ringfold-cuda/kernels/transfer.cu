// Sends and receives between two ranks.
//
// Small messages: the sender writes packets that contain their own flags, and ends. A pair has room for two messages.
// Larger messages: the sender announces where its data is, and waits until the receiver has it. The receiver waits for that
// announcement and reads the data.
//   `ringfold_meet`: announces and waits, with one thread for each transfer: transfers may wait for long without keeping others
//     from running.
//   `ringfold_pull`: reads the data in place if it is in registered memory. Nothing waits here then, so it may use the whole
//     device. Otherwise a few blocks take the data from the sender's staging area.
//   `ringfold_batch`: all steps of transfers that may wait for each other, in one kernel with very few blocks, which leave room
//     for other kernels. Kernels on several streams would not do: a process has few hardware queues, two under MPS, and what
//     waits in a queue keeps the streams behind it from starting.
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
// The host reads `consumed` and `small_sent`.
static_assert(RF_PAIR_CONSUMED == 3 * sizeof(u64) + 2 * sizeof(u32), "the place of a member");
static_assert(sizeof(Pair) == RF_PAIR_SMALL_SENT + (6 + 2 * RF_TRANSFER_BLOCKS) * sizeof(u32), "the place of a member");

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

// A message goes through a staging area in pieces; each part of the area has room for two. The pieces of a part are counted.
constexpr u64 PIECE = RF_TRANSFER_STAGING_BYTES / RF_TRANSFER_BLOCKS / 2;

// The staging area of a rank's messages to another one, at the place of a piece.
__device__ __forceinline__ char* staging_at(const Links& links, u32 from, u32 to, u32 part, u32 number) {
    return links.arenas[from] + RF_TRANSFER_STAGING + u64(to) * RF_TRANSFER_STAGING_BYTES + (part * 2 + (number & 1)) * PIECE;
}

__device__ __forceinline__ u64 piece_length(u64 bytes, u64 start) { return bytes - start < PIECE ? bytes - start : PIECE; }

// Receives an announced message, with at least as many blocks as the staging area has parts.
__device__ void pull(const Links& links, const Transfer& transfer, const Team& team) {
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    u32 message = mine->received + 1;
    bool is_here = load_acquire(word(mine->announced)) == message && mine->bytes == transfer.bytes;
    // Otherwise the wait for it has failed.
    if (!is_here) return;
    if (u64 code = mine->code) {
        copy_bytes(transfer.memory, registered_at(links, transfer.peer, code), transfer.bytes, team.first(), team.step());
    } else {
        u32 part = team.block;
        if (part < RF_TRANSFER_BLOCKS) {
            u32 number = mine->pulled[part];
#pragma unroll 1
            for (u64 start = part * PIECE; start < transfer.bytes; start += RF_TRANSFER_BLOCKS * PIECE) {
                number++;
                if (!await_all(links, mine->filled[part], number, transfer.peer)) return;
                const char* from = staging_at(links, transfer.peer, links.me, part, number);
                copy_bytes(transfer.memory + start, from, piece_length(transfer.bytes, start), threadIdx.x, blockDim.x);
                __syncthreads();
                if (threadIdx.x == 0) store_release(word(theirs->emptied[part]), number);
            }
            __syncthreads();
            if (threadIdx.x == 0) mine->pulled[part] = number;
        }
    }
    if (is_last(mine->received_blocks, team)) {
        mine->received = message;
        store_release(word(theirs->ended), message);
    }
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

extern "C" __global__ void __launch_bounds__(THREADS, 1) ringfold_pull(const __grid_constant__ Params p) {
    pull(p.links, p.transfers[0], Team{blockIdx.x, gridDim.x});
}

// Each row of blocks does one transfer.
extern "C" __global__ void __launch_bounds__(THREADS, 1) ringfold_small(const __grid_constant__ Params p) {
    exchange_packets(p.links, p.transfers[blockIdx.y], Team{blockIdx.x, gridDim.x});
}

// Whether a number that the peer counts up has come to `wanted`; for all threads of the block.
__device__ bool has_come(volatile u32& number, u32 wanted) {
    int has_come = threadIdx.x == 0 && int(load_acquire(word(number)) - wanted) >= 0;
    return __syncthreads_or(has_come);
}

// Whether all packets of the next small message from a rank have come; they may still be those of another call.
__device__ bool have_packets_come(const Links& links, const Transfer& transfer) {
    u32 message = pair_at(links, links.me, transfer.peer)->small_received + 1;
    int is_missing = 0;
#pragma unroll 1
    for (u64 index = threadIdx.x; index < (transfer.bytes + 7) / 8 && !is_missing; index += blockDim.x) {
        is_missing = load_volatile(small_packet(links.arenas[links.me], transfer.peer, message, index)).y != message * 2 + 1;
    }
    return !__syncthreads_or(is_missing);
}

enum Advance { WAITS, MOVES, ENDS, FAILS };

// How far a transfer of a batch has come: whether it is announced, and the bytes that went through the staging area.
struct Progress {
    u64 moved;
    bool is_announced;
};

// Does the next step of a transfer if nothing has to be waited for. The same result for all threads of the block.
__device__ Advance advance(const Links& links, const Transfer& transfer, Progress& progress) {
    volatile Pair* mine = pair_at(links, links.me, transfer.peer);
    volatile Pair* theirs = pair_at(links, transfer.peer, links.me);
    bool is_send = transfer.steps & SEND;
    if (transfer.steps & SMALL) {
        bool can = is_send ? has_come(mine->consumed, mine->small_sent - 1) : have_packets_come(links, transfer);
        if (!can) return WAITS;
        return exchange_packets(links, transfer, Team{0, 1}) ? ENDS : FAILS;
    }
    u32 message = (is_send ? mine->sent : mine->received) + 1;
    if (!progress.is_announced) {
        if (is_send) {
            if (threadIdx.x == 0) announce(links, transfer);
        } else {
            if (!has_come(mine->announced, message)) return WAITS;
            if (mine->fingerprint != transfer.fingerprint || mine->bytes != transfer.bytes) {
                if (threadIdx.x == 0) mscclpp::detail::report(links.page, DeviceError::Argument, transfer.peer, 0, 0);
                return FAILS;
            }
        }
        progress.is_announced = true;
        return MOVES;
    }
    u64 code = is_send ? transfer.code : mine->code;
    if (!code && progress.moved < transfer.bytes) {
        u64 start = progress.moved;
        u32 part = u32(start / PIECE % RF_TRANSFER_BLOCKS);
        volatile u32& count = is_send ? mine->pushed[part] : mine->pulled[part];
        u32 number = count + 1;
        if (!(is_send ? has_come(mine->emptied[part], number - 2) : has_come(mine->filled[part], number))) return WAITS;
        char* staging = is_send ? staging_at(links, links.me, transfer.peer, part, number)
                                : staging_at(links, transfer.peer, links.me, part, number);
        char *memory = transfer.memory + start, *to = is_send ? staging : memory, *from = is_send ? memory : staging;
        copy_bytes(to, from, piece_length(transfer.bytes, start), threadIdx.x, blockDim.x);
        __syncthreads();
        if (threadIdx.x == 0) {
            count = number;
            store_release(word(is_send ? theirs->filled[part] : theirs->emptied[part]), number);
        }
        progress.moved = start + PIECE;
        return MOVES;
    }
    if (is_send) {
        if (!has_come(mine->ended, message)) return WAITS;
        if (threadIdx.x == 0) mine->sent = message;
        return ENDS;
    }
    if (code) copy_bytes(transfer.memory, registered_at(links, transfer.peer, code), transfer.bytes, threadIdx.x, blockDim.x);
    __syncthreads();
    if (threadIdx.x == 0) {
        mine->received = message;
        store_release(word(theirs->ended), message);
    }
    return ENDS;
}

// The transfers with one rank in one direction, which are next to each other, in order.
struct Chain {
    u32 at, end;
    Progress progress;
};

// Each block advances some of the chains by turns.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
ringfold_batch(const __grid_constant__ TransferParams<RF_BATCH_MAX> p) {
    __shared__ Chain chains[2 * WORLD];
    const Links& links = p.links;
    u32 count = 0, number = 0;
    for (u32 at = 0, end; at < RF_BATCH_MAX && p.transfers[at].memory; at = end, number++) {
        const Transfer& first = p.transfers[at];
        for (end = at + 1; end < RF_BATCH_MAX && p.transfers[end].memory; end++) {
            const Transfer& next = p.transfers[end];
            if (next.peer != first.peer || (next.steps ^ first.steps) & SEND) break;
        }
        if (number % gridDim.x != blockIdx.x) continue;
        if (threadIdx.x == 0) chains[count] = Chain{at, end, Progress{0, false}};
        count++;
    }
    __syncthreads();
    int waited_for = -1;
    SpinGuard guard(links.page, DeviceError::Signal, -1, -1, links.timeout);
    for (u32 left = count; left > 0;) {
        bool has_moved = false;
        int waits_for = -1;
#pragma unroll 1
        for (u32 i = 0; i < count; i++) {
            Chain chain = chains[i];
            if (chain.at == chain.end) continue;
            const Transfer& transfer = p.transfers[chain.at];
            Advance how = advance(links, transfer, chain.progress);
            if (how == FAILS) return;
            if (how == WAITS) {
                if (waits_for < 0) waits_for = transfer.peer;
                continue;
            }
            has_moved = true;
            if (how == ENDS) {
                chain.progress = Progress{0, false};
                if (++chain.at == chain.end) left--;
            }
            // All threads have read it.
            __syncthreads();
            if (threadIdx.x == 0) chains[i] = chain;
            __syncthreads();
        }
        if (has_moved || waits_for != waited_for) {
            waited_for = waits_for;
            guard = SpinGuard(links.page, DeviceError::Signal, waits_for, -1, links.timeout);
        }
        int should_stop = threadIdx.x == 0 && left > 0 && guard.shouldStop();
        if (__syncthreads_or(should_stop)) return;
    }
}
