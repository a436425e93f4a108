// The logic of the device headers, by threads of a host: every line of them runs but for the accesses to memory.
#include <mscclpp/assert_device.hpp>
#include <mscclpp/concurrency_device.hpp>
#include <mscclpp/memory_channel_device.hpp>
#include <mscclpp/poll_device.hpp>
#include <mscclpp/port_channel_device.hpp>
#include <torchcomms/window_device.hpp>

#include <array>
#include <functional>
#include <vector>

using namespace mscclpp;

#define CHECK(condition)                                        \
  do {                                                          \
    if (!(condition)) {                                         \
      std::printf("line %d: %s\n", __LINE__, #condition);       \
      std::_Exit(1);                                            \
    }                                                           \
  } while (0)

namespace {

const int sizes[] = {0, 1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 255, 1023, 4096};
const unsigned threadCounts[] = {1, 3, 32, 100, 1000};
constexpr char untouched = 0x5a;
constexpr int edge = 64;

alignas(16) char source[8192];
alignas(16) char target[8192];
alignas(16) char packets[20000];
AbortPage page;

AbortLine& top = page.lines[0];

int error() { return top.errorWord & 0xff; }
int peer() { return static_cast<int32_t>(top.errorWord >> 32); }
int line() { return top.errorWord >> 8 & 0xffffff; }

// What the host does that ends all waits.
void end() {
  for (AbortLine& each : page.lines) detail::atomic(&each.flag).store(1);
}

void reset(uint64_t spinNs = 0) {
  page = AbortPage{};
  for (AbortLine& each : page.lines) each.spinNs = spinNs;
}

void inThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int number = 0; number < count; ++number) threads.emplace_back(body, number);
  for (std::thread& thread : threads) thread.join();
}

bool holdsOnly(const char* room, int at, const char* data, int bytes) {
  for (int i = 0; i < at + bytes + edge; ++i) {
    const char wanted = i >= at && i < at + bytes ? data[i - at] : untouched;
    if (room[i] != wanted) return false;
  }
  return true;
}

template <int Alignment>
void copiesAreExact() {
  for (int from = 0; from < 16; ++from) {
    for (int to = 0; to < 16; ++to) {
      for (int bytes : sizes) {
        for (unsigned threads : threadCounts) {
          std::memset(target, untouched, sizeof target);
          for (unsigned i = 0; i < threads; ++i) copy<Alignment>(target + edge + to, source + from, bytes, i, threads);
          CHECK(holdsOnly(target, edge + to, source + from, bytes));
        }
      }
    }
  }
}

template <class Packet>
void packetsAreExact() {
  for (int from = 0; from < 16; ++from) {
    const int to = edge + from % 5;
    for (int bytes : sizes) {
      for (unsigned threads : threadCounts) {
        std::memset(target, untouched, sizeof target);
        std::memset(packets, untouched, sizeof packets);
        for (unsigned i = 0; i < threads; ++i) {
          copyToPackets<Packet>(packets + edge, source + from, bytes, i, threads, 77);
        }
        const int payload = sizeof(Packet) / 2;
        const int length = (bytes + payload - 1) / payload * static_cast<int>(sizeof(Packet));
        for (int i = 0; i < edge; ++i) CHECK(packets[i] == untouched && packets[edge + length + i] == untouched);
        for (unsigned i = 0; i < threads; ++i) {
          CHECK(copyFromPackets<Packet>(target + to, packets + edge, bytes, i, threads, 77) == 0);
        }
        CHECK(holdsOnly(target, to, source + from, bytes));
      }
    }
  }
}

void blocksMeet() {
  static DeviceSyncer syncer;
  std::vector<std::atomic<uint32_t>> words(16);
  uint32_t first = 1;
  for (int blocks : {1, 2, 3, 8, 5, 1, 4}) {
    inThreads(blocks, [&](int block) {
      for (uint32_t mark = first; mark < first + 1000; ++mark) {
        words[block] = mark;
        CHECK(syncer.sync(blocks) == 0);
        for (int i = 0; i < blocks; ++i) CHECK(words[i] == mark);
        CHECK(syncer.sync(blocks) == 0);
      }
    });
    first += 1000;
  }
  // Those who give up leave the barrier whole, also if the others come at that very moment.
  for (int round = 0; round < 50; ++round) {
    inThreads(4, [&](int) { CHECK(syncer.sync(5, 100) == DeviceError::Syncer); });
    CHECK(top.flag == 2 && error() == DeviceError::Syncer);
    reset();
    inThreads(3, [&](int block) { syncer.sync(3, block == 0 ? 1 : 1000); });
    reset();
    inThreads(3, [&](int) { CHECK(syncer.sync(3) == 0); });
  }
}

void semaphoresCountPlaces() {
  static DeviceSemaphore semaphore(2);
  std::atomic<int> inside{0};
  inThreads(6, [&](int) {
    for (int round = 0; round < 1000; ++round) {
      CHECK(semaphore.acquire() == 0);
      CHECK(++inside <= 2);
      --inside;
      semaphore.release();
    }
  });
  CHECK(semaphore.acquire() == 0 && semaphore.acquire() == 0);
  CHECK(semaphore.acquire(10) == DeviceError::Syncer);
  reset();
}

void triggersComeOutOnceAndInOrder(int size) {
  constexpr uint64_t threads = 8, each = 500;
  int bits = 0;
  while (1 << bits < size) ++bits;
  std::vector<ProxyTrigger> slots(1 << bits);
  uint64_t head = 0, tail = 0, cache = 0;
  FifoDeviceHandle fifo{slots.data(), &head, &tail, &cache, &page, size, bits};
  std::vector<uint64_t> next(threads, 0);
  std::thread host([&] {
    for (uint64_t popped = 0; popped < threads * each; ++popped) {
      const ProxyTrigger& slot = slots[popped % slots.size()];
      while (detail::look(&slot.snd) >> 63 != ((popped / slots.size() + 1) & 1)) continue;
      // There is never more in it than its size.
      CHECK(detail::look(&slots[(popped + size) % slots.size()].snd) >> 63 == (((popped + size) / slots.size()) & 1) ||
            size == static_cast<int>(slots.size()));
      CHECK((slot.snd & ~(uint64_t(1) << 63)) == next[slot.fst]++);
      detail::atomic(&tail).store(popped + 1);
    }
  });
  inThreads(threads, [&](int me) {
    for (uint64_t i = 0; i < each; ++i) {
      // The last bit is not the user's.
      const uint64_t position = fifo.push({static_cast<uint64_t>(me), i | uint64_t(i & 1) << 63});
      CHECK(position != ~uint64_t(0));
      if (me % 2 == 1) CHECK(fifo.sync(position) == 0 && fifo.poll(position));
    }
  });
  host.join();
}

void countedLooksSeeWhatWasPopped() {
  ProxyTrigger slots[2] = {};
  // Somebody reads the tail, and has not come to tell what it is.
  uint64_t head = 2, tail = 1, cache = uint64_t(1) << 63;
  FifoDeviceHandle fifo{slots, &head, &tail, &cache, &page, 2, 1};
  CHECK(fifo.sync(0, 1) == 0 && fifo.push({1, 1}, 1) == 2);
  CHECK(top.flag == 0);
  CHECK(fifo.sync(1, 3) == DeviceError::Flush && fifo.push({1, 1}, 3) == ~uint64_t(0));
  for (const AbortLine& each : page.lines) CHECK(each.flag == 2);
  CHECK(cache == uint64_t(1) << 63);
  reset();
}

void signalsAreCountedAndWaitsEnd() {
  uint64_t words[4] = {};
  MemoryDevice2DeviceSemaphoreDeviceHandle one{&words[0], &words[1], &words[2], &page, 1, 0};
  MemoryDevice2DeviceSemaphoreDeviceHandle other{&words[1], &words[0], &words[3], &page, 4, 2};
  CHECK(!other.poll() && words[3] == 0);
  one.signal();
  one.relaxedSignal();
  CHECK(other.poll() && words[3] == 1);
  CHECK(other.wait() == 0 && words[3] == 2);
  CHECK(!other.poll() && words[3] == 2);
  // What has not come was not received, and the host hears of it.
  CHECK(other.wait(5) == DeviceError::Signal && words[3] == 2);
  CHECK(top.flag == 2 && error() == DeviceError::Signal && peer() == 4);
  reset(20'000'000);
  CHECK(other.wait() == DeviceError::Signal);
  CHECK(top.flag == 2 && top.waitedNs >= 20'000'000);
  // The host's own flag stays, and nobody says anything else.
  reset();
  std::thread host([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    end();
  });
  CHECK(other.wait() == DeviceError::Signal);
  host.join();
  CHECK(top.flag == 1 && error() == 0);
  reset();
  const volatile int zero = 0;
  POLL_MAYBE_JAILBREAK(zero == 0, 10);
  CHECK(error() == DeviceError::Signal);
  reset();
  OR_POLL_MAYBE_JAILBREAK(zero == 0, zero == 1, -1);
  CHECK(error() == 0);
}

void portChannelsSayWhatTheyAreAskedFor() {
  ProxyTrigger slots[4] = {};
  uint64_t head = 0, tail = 0, cache = 0, words[2] = {};
  PortChannelDeviceHandle channel{};
  channel.semaphoreId_ = 0x3ff;
  channel.semaphore_ = {&words[0], &words[1], &page, 9, 0};
  channel.fifo_ = {slots, &head, &tail, &cache, &page, 4, 2};
  channel.dst_ = 0x155;
  channel.src_ = 0xaa;
  for (uint64_t wrong : {0, 1, 2}) {
    const uint64_t large = uint64_t(1) << 32;
    CHECK(channel.put(wrong == 0 ? large : 0, wrong == 1 ? large : 0, wrong == 2 ? large : 0) == DeviceError::Argument);
    CHECK(error() == DeviceError::Argument && peer() == 9 && head == 0);
    reset();
  }
  CHECK(channel.put(0x11111111, 0x22222222, 0x33333333) == 0);
  CHECK(slots[0].fst == 0x2222222233333333);
  CHECK(slots[0].snd == (0x11111111 | uint64_t(0xaa) << 32 | uint64_t(0x155) << 41 | TriggerData << 50 |
                         uint64_t(0x3ff) << 53 | uint64_t(1) << 63));
  CHECK(channel.flush(3) == DeviceError::Flush && error() == DeviceError::Flush && peer() == 9);
  reset();
  CHECK(channel.signal() == 0 && channel.putWithSignal(0, 1) == 0);
  CHECK(channel.flush(5) == DeviceError::FifoSpace && error() == DeviceError::FifoSpace);
  reset();
  channel.dst_ = 512;
  CHECK(channel.putWithSignalAndFlush(0, 1) == DeviceError::Argument);
  reset();
}

void packetsAreWholeWhileTheyAreWritten() {
  constexpr uint64_t bytes = 1000;
  uint64_t words[4] = {};
  std::memset(packets, 0, sizeof packets);
  MemoryChannelDeviceHandle writer{}, reader{};
  writer.semaphore_ = {&words[0], &words[1], &words[2], &page, 1, 0};
  writer.dst_ = packets;
  writer.src_ = source;
  reader.semaphore_ = {&words[1], &words[0], &words[3], &page, 7, 0};
  reader.src_ = target;
  reader.packetBuffer_ = packets;
  inThreads(2, [&](int rank) {
    for (uint32_t round = 0; round < 1000; ++round) {
      const uint64_t at = (round & 1) * 2048;
      if (rank == 0) {
        if (round >= 2) CHECK(writer.wait() == 0);
        std::memset(source, static_cast<int>(round), bytes);
        writer.putPackets(at, 0, bytes, 0, 1, round + 1);
      } else {
        CHECK(reader.unpackPackets(at, 0, bytes, 0, 1, round + 1) == 0);
        for (uint64_t i = 0; i < bytes; ++i) CHECK(target[i] == static_cast<char>(round));
        reader.signal();
      }
    }
  });
  CHECK(reader.unpackPackets(0, 0, bytes, 0, 1, 5000, 10) == DeviceError::Packet);
  CHECK(error() == DeviceError::Packet && peer() == 7);
  reset();
}

void windowsCarryBytesAndSignals() {
  constexpr int size = 3;
  constexpr uint64_t bytes = 100;
  // Shortly before the counts wrap around.
  const torchcomms::WindowSignals almost{0xfffffff0, 0xfffffff0, 0xfffffff0, 0};
  alignas(8) char memory[size][bytes] = {};
  torchcomms::WindowSignals signals[size][size];
  torchcomms::WindowPeer peers[size];
  torchcomms::DeviceWindow windows[size];
  for (int rank = 0; rank < size; ++rank) {
    for (auto& each : signals[rank]) each = almost;
    peers[rank] = {memory[rank], bytes, signals[rank]};
    windows[rank] = {peers, &page, rank, size};
  }
  inThreads(size, [&](int rank) {
    const torchcomms::DeviceWindow& window = windows[rank];
    const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
    char row[7], found[7];
    for (int round = 0; round < 500; ++round) {
      std::memset(row, round * size + rank, sizeof row);
      CHECK(window.put(next, 3, row, sizeof row, 0, 1) && window.signal(next) && window.waitSignal(previous));
      for (char each : row) CHECK(each == static_cast<char>(round * size + rank));
      CHECK(window.get(rank, 3, found, sizeof found, 0, 1));
      for (char each : found) CHECK(each == static_cast<char>(round * size + previous));
      CHECK(window.signal(previous) && window.waitSignal(next));
    }
  });
  CHECK(top.errorWord == 0 && signals[0][1].arrived == 0xfffffff0u + 500);
  CHECK(windows[2].memory(1) == memory[1] && windows[2].bytes(1) == bytes && windows[2].rank() == 2 && windows[2].size() == size);
  // All of the memory, and nothing at its end.
  CHECK(windows[0].put(1, 0, memory[0], bytes, 0, 1) && windows[0].put(1, bytes, source, 0, 0, 1) && error() == 0);
  const uint64_t large = ~uint64_t(0);
  for (auto [rank, offset, count] : {std::array<uint64_t, 3>{1, 1, bytes}, {1, bytes + 1, 0}, {1, large, 2}, {1, 2, large}, {3, 0, 1}, {large, 0, 0}}) {
    CHECK(!windows[0].put(static_cast<int>(rank), offset, source, count, 0, 1));
    CHECK(error() == DeviceError::Bounds && peer() == static_cast<int>(rank));
    reset();
    CHECK(!windows[0].get(static_cast<int>(rank), offset, target, count, 0, 1) && error() == DeviceError::Bounds);
    reset();
  }
  CHECK(!windows[0].signal(3) && error() == DeviceError::Bounds);
  reset();
  CHECK(!windows[0].waitSignal(-1) && error() == DeviceError::Bounds);
  // A wait that ends takes nothing.
  reset(20'000'000);
  const uint32_t taken = signals[0][2].taken;
  CHECK(!windows[0].waitSignal(2) && error() == DeviceError::Signal && peer() == 2 && signals[0][2].taken == taken);
  reset();
  CHECK(!windows[0].waitSignal(2, 20'000'000) && top.waitedNs >= 20'000'000);
  reset();
  CHECK(windows[2].signal(0) && windows[0].waitSignal(2) && signals[0][2].taken == taken + 1);
}

void assertionsNameTheirLine() {
  MSCCLPP_ASSERT_DEVICE(top.flag == 0, "nothing is wrong");
  CHECK(top.flag == 0);
  MSCCLPP_ASSERT_DEVICE(top.flag != 0, "something is");
  CHECK(top.flag == 2 && error() == DeviceError::Assertion && line() == __LINE__ - 1);
  reset();
}

}  // namespace

int main() {
  for (unsigned i = 0; i < sizeof source; ++i) source[i] = static_cast<char>(i * 131 + i / 251);
  reset();
  mscclppAbortPage = reinterpret_cast<unsigned long long>(&page);
  copiesAreExact<4>();
  copiesAreExact<8>();
  copiesAreExact<16>();
  packetsAreExact<LL16Packet>();
  packetsAreExact<LL8Packet>();
  blocksMeet();
  semaphoresCountPlaces();
  for (int size : {1, 3, 8, 50}) triggersComeOutOnceAndInOrder(size);
  countedLooksSeeWhatWasPopped();
  signalsAreCountedAndWaitsEnd();
  portChannelsSayWhatTheyAreAskedFor();
  packetsAreWholeWhileTheyAreWritten();
  windowsCarryBytesAndSignals();
  assertionsNameTheirLine();
  std::puts("all of it holds");
}
