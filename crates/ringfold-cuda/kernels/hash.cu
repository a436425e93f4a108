// Hashes of the leaves of tensors: XXH3-128 with seed zero, as the host computes them (`ringfold-kernels/src/hash`).
//
// A warp hashes a leaf. Sixteen stripes of 64 bytes are mixed between two scramblings; what they add to the eight lanes
// does not depend on each other. Four threads hold two lanes each, and each eighth of the warp has every eighth stripe.
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 STRIPE = 64;
constexpr u32 BLOCK_STRIPES = 16;
// XXH3 hashes shorter inputs differently: their bytes are copied for the host.
constexpr u32 LONG_MIN = 241;
constexpr u32 COPY_BYTES = 256;

constexpr u64 PRIME32_1 = 0x9e3779b1ull, PRIME32_2 = 0x85ebca77ull, PRIME32_3 = 0xc2b2ae3dull;
constexpr u64 PRIME64_1 = 0x9e3779b185ebca87ull, PRIME64_2 = 0xc2b2ae3d27d4eb4full, PRIME64_3 = 0x165667b19e3779f9ull;
constexpr u64 PRIME64_4 = 0x85ebca77c2b2ae63ull, PRIME64_5 = 0x27d4eb2f165667c5ull;
constexpr u64 PRIME_AVALANCHE = 0x165667919e3779f9ull;

// The default secret of XXH3.
__constant__ unsigned char SECRET[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
    0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
    0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

struct Leaf {
    const unsigned char* data;
    u32 bytes;
    u32 copy;  // the place of its bytes if it is short
};

// Eight bytes of the secret.
__device__ __forceinline__ u64 secret_at(u32 at) {
    u64 word = 0;
#pragma unroll
    for (int i = 7; i >= 0; i--) word = word << 8 | SECRET[at + i];
    return word;
}

// Eight bytes at any address. The words around them belong to the same allocation.
__device__ __forceinline__ u64 load(const unsigned char* from) {
    u64 at = reinterpret_cast<u64>(from);
    auto* words = reinterpret_cast<const u64*>(at & ~7ull);
    u32 shift = u32(at & 7) * 8;
    u64 low = __ldg(words);
    return shift == 0 ? low : low >> shift | __ldg(words + 1) << (64 - shift);
}

struct Pair {
    u64 even, odd;
};

// This thread's two words of a stripe.
__device__ __forceinline__ Pair load_pair(const unsigned char* from, bool is_aligned) {
    if (is_aligned) {
        ulonglong2 both = __ldg(reinterpret_cast<const ulonglong2*>(from));
        return {both.x, both.y};
    }
    return {load(from), load(from + 8)};
}

__device__ __forceinline__ void mix(Pair& lanes, Pair input, Pair secret) {
    u64 even = input.even ^ secret.even, odd = input.odd ^ secret.odd;
    lanes.even += input.odd + u64(u32(even)) * (even >> 32);
    lanes.odd += input.even + u64(u32(odd)) * (odd >> 32);
}

__device__ __forceinline__ u64 sum_over_rows(u64 value) {
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

__device__ __forceinline__ void add_rows(Pair& lanes, Pair rows) {
    lanes.even += sum_over_rows(rows.even);
    lanes.odd += sum_over_rows(rows.odd);
}

__device__ __forceinline__ u64 scrambled(u64 lane, u64 secret) {
    return (lane ^ lane >> 47 ^ secret) * PRIME32_1;
}

// The hash of all lanes; all threads of the warp get it.
__device__ __forceinline__ u64 merged(Pair lanes, u32 secret, u32 pair, u64 start) {
    u64 a = lanes.even ^ secret_at(secret + 16 * pair), b = lanes.odd ^ secret_at(secret + 16 * pair + 8);
    u64 hash = a * b ^ __umul64hi(a, b);
    hash += __shfl_xor_sync(0xffffffffu, hash, 1);
    hash += __shfl_xor_sync(0xffffffffu, hash, 2);
    hash += start;
    hash = (hash ^ hash >> 37) * PRIME_AVALANCHE;
    return hash ^ hash >> 32;
}

__device__ ulonglong2 hash_leaf(const unsigned char* data, u32 bytes) {
    const u32 pair = threadIdx.x & 3, row = (threadIdx.x & 31) >> 2;
    const bool is_aligned = (reinterpret_cast<u64>(data) & 15) == 0;
    const u64 first_lanes[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    Pair lanes = {first_lanes[0], first_lanes[1]};
#pragma unroll
    for (u32 i = 1; i < 4; i++) {
        if (pair == i) lanes = {first_lanes[2 * i], first_lanes[2 * i + 1]};
    }
    const u32 of_pair = 16 * pair;
    const Pair secrets[2] = {{secret_at(8 * row + of_pair), secret_at(8 * row + of_pair + 8)},
                             {secret_at(8 * row + 64 + of_pair), secret_at(8 * row + 64 + of_pair + 8)}};
    const Pair scrambler = {secret_at(128 + of_pair), secret_at(128 + of_pair + 8)};
    // The last stripe, whole or partial, is mixed separately.
    const u32 stripes = (bytes - 1) / STRIPE;
    const unsigned char* at = data + row * STRIPE + of_pair;
#pragma unroll 4
    for (u32 block = 0; block < stripes / BLOCK_STRIPES; block++) {
        Pair rows = {0, 0};
        mix(rows, load_pair(at, is_aligned), secrets[0]);
        mix(rows, load_pair(at + 8 * STRIPE, is_aligned), secrets[1]);
        at += BLOCK_STRIPES * STRIPE;
        add_rows(lanes, rows);
        lanes = {scrambled(lanes.even, scrambler.even), scrambled(lanes.odd, scrambler.odd)};
    }
    const u32 rest = stripes % BLOCK_STRIPES;
    Pair rows = {0, 0};
    if (row < rest) mix(rows, load_pair(at, is_aligned), secrets[0]);
    if (row + 8 < rest) mix(rows, load_pair(at + 8 * STRIPE, is_aligned), secrets[1]);
    if (row == 0) {
        const unsigned char* last = data + bytes - STRIPE + of_pair;
        mix(rows, {load(last), load(last + 8)}, {secret_at(121 + of_pair), secret_at(121 + of_pair + 8)});
    }
    add_rows(lanes, rows);
    u64 low = merged(lanes, 11, pair, bytes * PRIME64_1);
    u64 high = merged(lanes, 117, pair, ~(bytes * PRIME64_2));
    return make_ulonglong2(low, high);
}

extern "C" __global__ void __launch_bounds__(256)
    ringfold_hash_leaves(const Leaf* leaves, u64 count, ulonglong2* hashes, unsigned char* copies) {
    const u32 lane = threadIdx.x & 31;
    u64 step = u64(gridDim.x) * (blockDim.x / 32);
    for (u64 index = (u64(blockIdx.x) * blockDim.x + threadIdx.x) / 32; index < count; index += step) {
        Leaf leaf = leaves[index];
        if (leaf.bytes < LONG_MIN) {
            for (u32 i = lane; i < leaf.bytes; i += 32) copies[u64(leaf.copy) * COPY_BYTES + i] = leaf.data[i];
            continue;
        }
        ulonglong2 hash = hash_leaf(leaf.data, leaf.bytes);
        if (lane == 0) hashes[index] = hash;
    }
}
