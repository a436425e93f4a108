// Many gradients at once: each tensor is reduced with its own tag, a few at a time, and operations that a dying peer
// aborts are repeated.
//
//   concurrent_reduces [IP:PORT [PEERS]]
//
// IP:PORT is the master's address (default 127.0.0.1:48148); a step begins with
// PEERS or more peers (default 2).
//
// Start a master and PEERS or more of these. Each ends with exit code 0 after the last step.
#include "peer.hpp"

#include <chrono>
#include <iostream>
#include <thread>
#include <vector>

static constexpr uint64_t STEPS = 4;
static constexpr size_t TENSORS = 16;
static constexpr size_t ELEMENTS = 50'000;
static constexpr int IN_FLIGHT_MAX = 4; // May differ between peers.

// The gradients of one step; they are the same on every peer, so that the average is known.
static std::vector<std::vector<float>> gradients(uint64_t step) {
    std::vector<std::vector<float>> tensors;
    for (size_t i = 0; i < TENSORS; i++) tensors.emplace_back(ELEMENTS, float(step + i));
    return tensors;
}

static pcclReduceDescriptor_t average(uint64_t tag) {
    pcclReduceDescriptor_t descriptor{};
    descriptor.count = ELEMENTS;
    descriptor.op = pcclAvg;
    descriptor.tag = tag;
    descriptor.src_descriptor.datatype = pcclFloat;
    return descriptor;
}

static void run(const Peer &peer, int peers) {
    uint64_t done = 0; // Steps done; the same on all peers.
    pcclTensorInfo_t tensor{"steps", &done, 1, pcclUint64, pcclDeviceCpu, false};
    pcclSharedState_t state{0, 1, &tensor};
    bool admitted = peer.world() >= peers;
    while (state.revision < STEPS) {
        if (!admitted) peer.admit();
        admitted = false;
        if (peer.world() < peers) {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            continue;
        }
        check(pcclSynchronizeSharedState(peer.get(), &state, nullptr));

        auto tensors = gradients(state.revision);
        std::vector<pcclReduceOpDescriptor_t> operations;
        for (size_t i = 0; i < tensors.size(); i++) {
            operations.push_back({tensors[i].data(), tensors[i].data(), average(i)});
        }
        pcclReduceInfo_t info{};
        const auto result = pcclAllReduceMultipleWithRetry(operations.data(), operations.size(), peer.get(), &info,
                                                           IN_FLIGHT_MAX);
        if (result == pcclTooFewPeers) continue; // Wait for other peers, then repeat the step.
        check(result);
        for (size_t i = 0; i < tensors.size(); i++) {
            if (tensors[i].back() != float(state.revision + i)) throw std::runtime_error("wrong average");
        }
        done++;
        state.revision++;
        std::cout << "step " << state.revision << " with " << info.local_world_size << " peers: " << TENSORS
                  << " tensors, " << info.tx_bytes << " bytes sent" << std::endl;
    }
}

int main(int argc, char **argv) {
    try {
        const int peers = peers_of(argc, argv);
        run(Peer(argc > 1 ? argv[1] : "127.0.0.1:48148"), peers);
        return 0;
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
