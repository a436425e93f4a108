// A run that peers join while it is running. The first peer trains alone; a later peer receives the weights and the
// current step, and continues with the others. All end with the same weights.
//
//   joining_late [IP:PORT [STEPS]]      defaults: 127.0.0.1:48148 and 60 steps
//
// Start a master, one of these, and a second or two later others. Each ends with exit code 0 after the last step.
#include "peer.hpp"

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

// Admits waiting peers. Asking first is cheaper than a vote on a topology that does not change.
static void admit_if_anyone_waits(const Peer &peer) {
    bool pending = false;
    pcclResult_t result;
    while ((result = pcclArePeersPending(peer.get(), &pending)) == pcclRankConnectionLost) {
        std::cerr << "the vote failed: " << pcclGetLastError() << '\n';
    }
    check(result);
    if (pending) peer.admit();
}

static void run(const Peer &peer, uint64_t steps) {
    std::vector<float> weights(1 << 20);
    pcclTensorInfo_t tensor{"weights", weights.data(), weights.size(), pcclFloat, pcclDeviceCpu, false};
    pcclSharedState_t state{0, 1, &tensor};
    std::vector<float> gradient(weights.size());

    bool admitted = peer.world() > 1;
    for (;;) {
        if (!admitted) admit_if_anyone_waits(peer);
        pcclSharedStateSyncInfo_t moved{};
        check(pcclSynchronizeSharedState(peer.get(), &state, &moved));
        if (admitted) {
            std::cout << "joined at step " << state.revision << ", " << moved.rx_bytes << " bytes received"
                      << std::endl;
        }
        admitted = false;
        if (state.revision >= steps) break;

        gradient.assign(gradient.size(), 1);
        pcclReduceDescriptor_t average{};
        average.count = gradient.size();
        average.op = pcclAvg;
        average.src_descriptor.datatype = pcclFloat;
        pcclResult_t result;
        while ((result = pcclAllReduce(gradient.data(), gradient.data(), &average, peer.get(), nullptr)) ==
               pcclRankConnectionLost) {
            std::cerr << "the reduce was aborted: " << pcclGetLastError() << '\n';
        }
        if (result != pcclTooFewPeers) check(result); // Without other peers, the gradient is this peer's own.

        for (size_t i = 0; i < weights.size(); i++) weights[i] += gradient[i];
        state.revision++;
        std::cout << "step " << state.revision << " with " << peer.world() << " peers" << std::endl;
        std::this_thread::sleep_for(std::chrono::milliseconds(50)); // The work of a step.
    }
    for (float weight : weights) {
        if (weight != float(steps)) throw std::runtime_error("the weights are not those of all steps");
    }
}

int main(int argc, char **argv) {
    try {
        const char *steps = argc > 2 ? argv[2] : "60";
        run(Peer(argc > 1 ? argv[1] : "127.0.0.1:48148"), std::strtoull(steps, nullptr, 10));
        return 0;
    } catch (const std::exception &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
