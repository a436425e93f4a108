// Packets: data with a flag, so that the receiver needs no separate signal.
//
// A packet is written and read by one access, and its flag identifies the round. Flags of consecutive rounds through
// the same memory must differ, and differ from its initial content.
#ifndef MSCCLPP_PACKET_DEVICE_HPP_
#define MSCCLPP_PACKET_DEVICE_HPP_

#include <mscclpp/abort_device.hpp>
#include <mscclpp/access_device.hpp>
#include <mscclpp/device.hpp>

namespace mscclpp {

// Eight bytes of data in sixteen.
struct alignas(16) LL16Packet {
  uint32_t data1;
  uint32_t flag1;
  uint32_t data2;
  uint32_t flag2;

#if defined(MSCCLPP_DEVICE_CUDA)
  using Payload = uint2;

  MSCCLPP_DEVICE_INLINE void write(uint32_t val1, uint32_t val2, uint32_t flag) {
    detail::storePacket(this, make_uint4(val1, flag, val2, flag));
  }
  MSCCLPP_DEVICE_INLINE void write(uint2 val, uint32_t flag) { write(val.x, val.y, flag); }
  MSCCLPP_DEVICE_INLINE void write(uint64_t val, uint32_t flag) {
    write(static_cast<uint32_t>(val), static_cast<uint32_t>(val >> 32), flag);
  }

  // Reads once. Returns true if the packet has not arrived yet.
  MSCCLPP_DEVICE_INLINE bool readOnce(uint32_t flag, uint2& data) const {
    uint4 packet;
    detail::loadPacket(this, packet);
    data.x = packet.x;
    data.y = packet.z;
    return packet.y != flag || packet.w != flag;
  }

  // Waits for the packet. Returns 0 or the error. The page may be null.
  MSCCLPP_DEVICE_INLINE int read(uint32_t flag, uint2& data, AbortPage* page, int peer, int64_t maxSpinCount) const {
    SpinGuard guard(page, DeviceError::Packet, peer, maxSpinCount);
    while (readOnce(flag, data)) {
      if (guard.shouldStop()) return guard.error();
    }
    return DeviceError::None;
  }

  // Waits for the packet. On a timeout, which is reported to the host, the data are invalid.
  MSCCLPP_DEVICE_INLINE uint2 read(uint32_t flag, int64_t maxSpinCount = -1) const {
    uint2 data;
    read(flag, data, nullptr, -1, maxSpinCount);
    return data;
  }

  MSCCLPP_DEVICE_INLINE void clear() { detail::storePacket(this, make_uint4(0, 0, 0, 0)); }
#endif
};
static_assert(sizeof(LL16Packet) == 16, "one access");

// Four bytes of data in eight.
struct alignas(8) LL8Packet {
  uint32_t data;
  uint32_t flag;

#if defined(MSCCLPP_DEVICE_CUDA)
  using Payload = uint32_t;

  MSCCLPP_DEVICE_INLINE void write(uint32_t val, uint32_t expectedFlag) {
    detail::storePacket(this, make_uint2(val, expectedFlag));
  }

  // Reads once. Returns true if the packet has not arrived yet.
  MSCCLPP_DEVICE_INLINE bool readOnce(uint32_t expectedFlag, uint32_t& val) const {
    uint2 packet;
    detail::loadPacket(this, packet);
    val = packet.x;
    return packet.y != expectedFlag;
  }

  // Waits for the packet. Returns 0 or the error. The page may be null.
  MSCCLPP_DEVICE_INLINE int read(uint32_t expectedFlag, uint32_t& val, AbortPage* page, int peer,
                                 int64_t maxSpinCount) const {
    SpinGuard guard(page, DeviceError::Packet, peer, maxSpinCount);
    while (readOnce(expectedFlag, val)) {
      if (guard.shouldStop()) return guard.error();
    }
    return DeviceError::None;
  }

  // Waits for the packet. On a timeout, which is reported to the host, the data are invalid.
  MSCCLPP_DEVICE_INLINE uint32_t read(uint32_t expectedFlag, int64_t maxSpinCount = -1) const {
    uint32_t val;
    read(expectedFlag, val, nullptr, -1, maxSpinCount);
    return val;
  }

  MSCCLPP_DEVICE_INLINE void clear() { detail::storePacket(this, make_uint2(0, 0)); }
#endif
};
static_assert(sizeof(LL8Packet) == 8, "one access");

// The older name.
using LLPacket = LL16Packet;

enum class PacketType {
  LL8,
  LL16,
};

#if defined(MSCCLPP_DEVICE_CUDA)
namespace detail {

// Loads and stores the data of one packet, aligned.
MSCCLPP_DEVICE_INLINE void loadAligned(const char* at, uint2& data) {
  Vector<false, 8> both;
  both.load(at);
  data = make_uint2(static_cast<uint32_t>(both.value), static_cast<uint32_t>(both.value >> 32));
}
MSCCLPP_DEVICE_INLINE void loadAligned(const char* at, uint32_t& data) {
  Vector<false, 4> word;
  word.load(at);
  data = word.value;
}
MSCCLPP_DEVICE_INLINE void storeAligned(char* at, uint2 data) {
  Vector<false, 8> both;
  both.value = data.x | (static_cast<uint64_t>(data.y) << 32);
  both.store(at);
}
MSCCLPP_DEVICE_INLINE void storeAligned(char* at, uint32_t data) {
  Vector<false, 4> word;
  word.value = data;
  word.store(at);
}

// The same at any address, and up to `bytes`.
MSCCLPP_DEVICE_INLINE void loadBytes(const char* at, uint64_t bytes, uint32_t& data) {
  data = 0;
  for (uint32_t i = 0; i < 4 && i < bytes; ++i) {
    Vector<false, 1> byte;
    byte.load(at + i);
    data |= static_cast<uint32_t>(byte.value) << (8 * i);
  }
}
MSCCLPP_DEVICE_INLINE void loadBytes(const char* at, uint64_t bytes, uint2& data) {
  loadBytes(at, bytes, data.x);
  loadBytes(at + 4, bytes > 4 ? bytes - 4 : 0, data.y);
}
MSCCLPP_DEVICE_INLINE void storeBytes(char* at, uint64_t bytes, uint32_t data) {
  for (uint32_t i = 0; i < 4 && i < bytes; ++i) {
    Vector<false, 1> byte;
    byte.value = static_cast<unsigned short>((data >> (8 * i)) & 0xff);
    byte.store(at + i);
  }
}
MSCCLPP_DEVICE_INLINE void storeBytes(char* at, uint64_t bytes, uint2 data) {
  storeBytes(at, bytes, data.x);
  storeBytes(at + 4, bytes > 4 ? bytes - 4 : 0, data.y);
}

template <class Packet>
MSCCLPP_DEVICE_INLINE void copyToPackets(Packet* packets, const char* data, uint64_t bytes, uint32_t threadId,
                                         uint32_t numThreads, uint32_t flag) {
  using Payload = typename Packet::Payload;
  constexpr int flight = 4;
  const uint64_t stride = numThreads;
  uint64_t i = threadId;
  if ((reinterpret_cast<uint64_t>(data) & (sizeof(Payload) - 1)) == 0) {
    // Whole packets, four in flight.
    const uint64_t whole = bytes / sizeof(Payload);
    for (; i < whole; i += flight * stride) {
      Payload payloads[flight];
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        if (i + k * stride < whole) loadAligned(data + (i + k * stride) * sizeof(Payload), payloads[k]);
      }
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        if (i + k * stride < whole) packets[i + k * stride].write(payloads[k], flag);
      }
    }
    i = whole + (threadId + stride - whole % stride) % stride;
  }
  // All packets if the data are unaligned; otherwise the last one, if it is partial.
  for (; i * sizeof(Payload) < bytes; i += stride) {
    Payload payload;
    loadBytes(data + i * sizeof(Payload), bytes - i * sizeof(Payload), payload);
    packets[i].write(payload, flag);
  }
}

template <class Packet>
MSCCLPP_DEVICE_INLINE int copyFromPackets(char* data, const Packet* packets, uint64_t bytes, uint32_t threadId,
                                          uint32_t numThreads, uint32_t flag, AbortPage* page, int peer,
                                          int64_t maxSpinCount) {
  using Payload = typename Packet::Payload;
  constexpr int flight = 4;
  const uint64_t stride = numThreads;
  uint64_t i = threadId;
  if ((reinterpret_cast<uint64_t>(data) & (sizeof(Payload) - 1)) == 0) {
    // Whole packets, four at a time; those that have not arrived are polled.
    const uint64_t whole = bytes / sizeof(Payload);
    for (; i < whole; i += flight * stride) {
      Payload payloads[flight];
      bool isMissing[flight];
      bool isAnyMissing = false;
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        isMissing[k] = i + k * stride < whole && packets[i + k * stride].readOnce(flag, payloads[k]);
        isAnyMissing = isAnyMissing || isMissing[k];
      }
      SpinGuard guard(page, DeviceError::Packet, peer, maxSpinCount);
      while (isAnyMissing) {
        if (guard.shouldStop()) return guard.error();
        isAnyMissing = false;
#pragma unroll
        for (int k = 0; k < flight; ++k) {
          isMissing[k] = isMissing[k] && packets[i + k * stride].readOnce(flag, payloads[k]);
          isAnyMissing = isAnyMissing || isMissing[k];
        }
      }
#pragma unroll
      for (int k = 0; k < flight; ++k) {
        if (i + k * stride < whole) storeAligned(data + (i + k * stride) * sizeof(Payload), payloads[k]);
      }
    }
    i = whole + (threadId + stride - whole % stride) % stride;
  }
  for (; i * sizeof(Payload) < bytes; i += stride) {
    Payload payload;
    const int error = packets[i].read(flag, payload, page, peer, maxSpinCount);
    if (error != DeviceError::None) return error;
    storeBytes(data + i * sizeof(Payload), bytes - i * sizeof(Payload), payload);
  }
  return DeviceError::None;
}

}  // namespace detail

// Writes data as packets; called by threads 0 to numThreads - 1, which share the work. Packets take twice the space of
// the data (a partial last one is written whole) and are aligned to their size; data may be at any address.
template <typename PacketType = LL16Packet>
MSCCLPP_DEVICE_INLINE void copyToPackets(void* packets, const void* data, uint64_t bytes, uint32_t threadId,
                                         uint32_t numThreads, uint32_t flag) {
  detail::copyToPackets(static_cast<PacketType*>(packets), static_cast<const char*>(data), bytes, threadId, numThreads,
                        flag);
}

// Waits for packets and writes their data. Returns 0 or the error.
template <typename PacketType = LL16Packet>
MSCCLPP_DEVICE_INLINE int copyFromPackets(void* data, const void* packets, uint64_t bytes, uint32_t threadId,
                                          uint32_t numThreads, uint32_t flag, int64_t maxSpinCount = -1) {
  return detail::copyFromPackets(static_cast<char*>(data), static_cast<const PacketType*>(packets), bytes, threadId,
                                 numThreads, flag, nullptr, -1, maxSpinCount);
}

// The older names. Offsets are in bytes.
template <typename PacketType = LL16Packet>
MSCCLPP_DEVICE_INLINE void putPackets(void* packets, uint64_t packetOffset, const void* data, uint64_t dataOffset,
                                      uint64_t bytes, uint32_t threadId, uint32_t numThreads, uint32_t flag) {
  copyToPackets<PacketType>(static_cast<char*>(packets) + packetOffset, static_cast<const char*>(data) + dataOffset,
                            bytes, threadId, numThreads, flag);
}

template <typename PacketType = LL16Packet>
MSCCLPP_DEVICE_INLINE int getPackets(const void* packets, uint64_t packetOffset, void* data, uint64_t dataOffset,
                                     uint64_t bytes, uint32_t threadId, uint32_t numThreads, uint32_t flag,
                                     int64_t maxSpinCount = -1) {
  return copyFromPackets<PacketType>(static_cast<char*>(data) + dataOffset,
                                     static_cast<const char*>(packets) + packetOffset, bytes, threadId, numThreads,
                                     flag, maxSpinCount);
}
#endif  // MSCCLPP_DEVICE_CUDA

}  // namespace mscclpp

#endif  // MSCCLPP_PACKET_DEVICE_HPP_
