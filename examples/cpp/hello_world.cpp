// A small training loop in C++: join, admit other peers, optimize the ring, sync the state, reduce; five steps.
//
//   hello_world [IP:PORT [PEERS]]
//
// IP:PORT is the master's address (default 127.0.0.1:48148); a step begins with
// PEERS or more peers (default 2).
//
// Start a master and PEERS or more of these. Each ends with exit code 0 after the last step.
#include "peer.hpp"

#include <chrono>
#include <iostream>
#include <thread>

static constexpr uint64_t STEPS = 5;

static void run(const Peer &peer, int peers) {
    float weights[8] = {};
    pcclTensorInfo_t tensor{"weights", weights, 8, pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t state{0, 1, &tensor};

    // A new peer was admitted by the others' vote, and continues with them; all other peers vote at each step.
    bool admitted = peer.world() >= peers;
    while (state.revision < STEPS) {
        if (!admitted) peer.admit();
        admitted = false;
        if (peer.world() < peers) {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            continue;
        }

        pcclResult_t result;
        while ((result = pcclOptimizeTopology(peer.get())) == pcclOptimizeTopologyFailed) {
            std::cerr << "the topology could not be optimised: " << pcclGetLastError() << '\n';
        }
        if (result == pcclInvalidUsage) continue; // The other peers have left.
        check(result);

        pcclSharedStateSyncInfo_t moved{};
        check(pcclSynchronizeSharedState(peer.get(), &state, &moved));

        float gradient[8];
        for (int i = 0; i < 8; i++) gradient[i] = float(i + 1);
        pcclReduceDescriptor_t average{};
        average.count = 8;
        average.op = pcclAvg;
        average.src_descriptor.datatype = pcclFloat;
        pcclReduceInfo_t info{};
        // In place: after a failure the gradient is restored, so it can be reduced again.
        while ((result = pcclAllReduce(gradient, gradient, &average, peer.get(), &info)) == pcclRankConnectionLost) {
            std::cerr << "the reduce was aborted: " << pcclGetLastError() << '\n';
        }
        if (result == pcclTooFewPeers) continue; // Wait for other peers, then repeat the step.
        check(result);

        for (int i = 0; i < 8; i++) weights[i] += gradient[i];
        state.revision++;
        std::cout << "step " << state.revision << " with " << info.local_world_size
                  << " peers: weights[7] = " << weights[7] << ", " << moved.rx_bytes << " bytes of state received"
                  << std::endl;
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
