// What two or three peers do together through pccl.h. The argument names the scenario.
#include "peers.hpp"

#include <cstring>
#include <string>

static void sums() {
    run_peers({0, 0, 0}, [](pcclComm_t *comm, int number) {
        const std::vector<float> mine(1000, float(number + 1));
        std::vector<float> result(1000), in_place = mine;
        auto sum = reduce_of(1000, pcclFloat, pcclSum, 0);
        pcclReduceInfo_t info{};
        OK(pcclAllReduce(mine.data(), result.data(), &sum, comm, &info));
        HOLDS(result == std::vector<float>(1000, 6.f) && mine[0] == float(number + 1));
        HOLDS(info.local_world_size == 3 && info.tx_bytes > 0 && info.rx_bytes > 0);
        OK(pcclAllReduce(in_place.data(), in_place.data(), &sum, comm, nullptr));
        HOLDS(in_place == result);

        int32_t value = -(number + 1) * 5;
        auto average = reduce_of(1, pcclInt32, pcclAvg, 9);
        OK(pcclAllReduce(&value, &value, &average, comm, nullptr));
        HOLDS(value == -10);

        // Nothing to do is agreed on, and needs no memory.
        auto nothing = reduce_of(0, pcclFloat, pcclMax, 1);
        OK(pcclAllReduce(nullptr, nullptr, &nothing, comm, nullptr));
    });
}

static void every_type_and_operation() {
    run_peers({0, 0}, [](pcclComm_t *comm, int) {
        for (int type = pcclUint8; type <= pcclDouble; type++) {
            for (int op = pcclSum; op <= pcclMin; op++) {
                std::vector<uint8_t> zeros(8 * 33), result(8 * 33, 1);
                auto descriptor = reduce_of(33, pcclDataType_t(type), pcclRedOp_t(op), 0);
                OK(pcclAllReduce(zeros.data(), result.data(), &descriptor, comm, nullptr));
                HOLDS(result[0] == 0 && result[32] == 0);
            }
        }
    });
}

static void quantised() {
    run_peers({0, 0}, [](pcclComm_t *comm, int number) {
        std::vector<float> values(5000, number == 0 ? 42.f : 43.f);
        auto descriptor = reduce_of(values.size(), pcclFloat, pcclSum, 0);
        descriptor.quantization_options = {pcclUint8, pcclQuantMinMax};
        OK(pcclAllReduce(values.data(), values.data(), &descriptor, comm, nullptr));
        HOLDS(values == std::vector<float>(5000, 85.f));
        descriptor.op = pcclProd;
        EXPECT(pcclInvalidArgument, pcclAllReduce(values.data(), values.data(), &descriptor, comm, nullptr));
    });
}

/* The largest error of the mean of several quantised sums of the same values, which are 3 x i / 1000. */
static double error_of_mean(pcclComm_t *comm, int number, uint64_t tag) {
    const size_t count = 1000, steps = 16;
    std::vector<double> sums(count, 0.0);
    for (size_t step = 0; step < steps; step++) {
        std::vector<float> values(count);
        for (size_t i = 0; i < count; i++) values[i] = float(i) / 1000 * float(number + 1);
        auto descriptor = reduce_of(count, pcclFloat, pcclSum, tag);
        descriptor.quantization_options = {pcclUint8, pcclQuantMinMax};
        OK(pcclAllReduce(values.data(), values.data(), &descriptor, comm, nullptr));
        for (size_t i = 0; i < count; i++) sums[i] += values[i];
    }
    double worst = 0;
    for (size_t i = 0; i < count; i++) {
        double error = sums[i] / double(steps) - 3.0 * double(i) / 1000;
        worst = error > worst ? error : -error > worst ? -error : worst;
    }
    return worst;
}

static void error_feedback_and_traffic() {
    run_peers({0, 0}, [](pcclComm_t *comm, int number) {
        double without = error_of_mean(comm, number, 1);
        OK(pcclSetErrorFeedback(comm, true));
        HOLDS(error_of_mean(comm, number, 1) * 3 < without);
        OK(pcclSetErrorFeedback(comm, false));
        HOLDS(error_of_mean(comm, number, 1) == without);
        OK(pcclSetReproducible(comm, true));
        float value = float(number);
        auto quantised = reduce_of(1, pcclFloat, pcclSum, 2);
        quantised.quantization_options = {pcclUint8, pcclQuantMinMax};
        EXPECT(pcclInvalidArgument, pcclAllReduce(&value, &value, &quantised, comm, nullptr));
        auto plain = reduce_of(1, pcclFloat, pcclSum, 2);
        OK(pcclAllReduce(&value, &value, &plain, comm, nullptr));
        HOLDS(value == 1);
        OK(pcclSetReproducible(comm, false));
        /* A quantised one is not resumed, and no error. */
        OK(pcclSetResume(comm, true));
        value = float(number);
        OK(pcclAllReduce(&value, &value, &plain, comm, nullptr));
        HOLDS(value == 1);
        OK(pcclAllReduce(&value, &value, &quantised, comm, nullptr));
        OK(pcclSetResume(comm, false));
        pcclTraffic_t traffic;
        OK(pcclGetTraffic(comm, &traffic));
        HOLDS(traffic.sent == 0 && traffic.local_sent > 0 && traffic.local_received > 0);
        size_t count = 0;
        OK(pcclGetPeerTraffic(comm, nullptr, 0, &count));
        HOLDS(count == 2);
        pcclPeerTraffic_t peers[2];
        OK(pcclGetPeerTraffic(comm, peers, 2, &count));
        /* The master's id is zero, and the lowest. */
        pcclRankUuid_t master = {};
        HOLDS(std::memcmp(&peers[0].peer, &master, sizeof master) == 0 && peers[0].traffic.local_sent > 0);
        EXPECT(pcclInvalidArgument, pcclGetTraffic(comm, nullptr));
        EXPECT(pcclInvalidArgument, pcclGetPeerTraffic(comm, nullptr, 1, &count));
    });
}

static void tags_in_any_order() {
    run_peers({0, 0}, [](pcclComm_t *comm, int number) {
        const int count = 8;
        std::vector<std::vector<double>> buffers;
        std::vector<pcclAsyncReduceOp_t> handles(count);
        for (int i = 0; i < count; i++) buffers.emplace_back(20000, double(i + number));
        for (int i = 0; i < count; i++) {
            int tag = number == 0 ? i : count - 1 - i;
            auto sum = reduce_of(20000, pcclDouble, pcclSum, uint64_t(tag));
            OK(pcclAllReduceAsync(buffers[tag].data(), buffers[tag].data(), &sum, comm, &handles[tag]));
            HOLDS(handles[tag].comm == comm && handles[tag].tag == uint64_t(tag));
            double other = 0;
            auto again = reduce_of(1, pcclDouble, pcclSum, uint64_t(tag));
            EXPECT(pcclInvalidArgument, pcclAllReduce(&other, &other, &again, comm, nullptr));
        }
        EXPECT(pcclPendingAsyncOps, pcclUpdateTopology(comm));
        for (int i = 0; i < count; i++) {
            int tag = (i * 3) % count;
            pcclReduceInfo_t info{};
            OK(pcclAwaitAsyncReduce(&handles[tag], &info));
            HOLDS(info.local_world_size == 2);
            HOLDS(buffers[tag] == std::vector<double>(20000, 2.0 * tag + 1.0));
            EXPECT(pcclInvalidArgument, pcclAwaitAsyncReduce(&handles[tag], &info));
        }

        // One that is finished and not awaited counts as well.
        float value = 1;
        auto sum = reduce_of(1, pcclFloat, pcclSum, 77);
        pcclAsyncReduceOp_t handle{};
        pcclSharedState_t state{};
        OK(pcclAllReduceAsync(&value, &value, &sum, comm, &handle));
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        EXPECT(pcclPendingAsyncOps, pcclUpdateTopology(comm));
        EXPECT(pcclPendingAsyncOps, pcclOptimizeTopology(comm));
        EXPECT(pcclPendingAsyncOps, pcclSynchronizeSharedState(comm, &state, nullptr));
        OK(pcclAwaitAsyncReduce(&handle, nullptr));
        HOLDS(value == 2);
        OK(pcclUpdateTopology(comm));
    });
}

static void several_with_retry() {
    run_peers({0, 0}, [](pcclComm_t *comm, int number) {
        std::vector<std::vector<float>> buffers(20, std::vector<float>(3000, float(number)));
        std::vector<pcclReduceOpDescriptor_t> several;
        for (size_t i = 0; i < buffers.size(); i++) {
            several.push_back({buffers[i].data(), buffers[i].data(), reduce_of(3000, pcclFloat, pcclMax, i)});
        }
        pcclReduceInfo_t info{};
        OK(pcclAllReduceMultipleWithRetry(several.data(), several.size(), comm, &info, number == 0 ? 3 : 16));
        HOLDS(info.local_world_size == 2 && info.tx_bytes > 0);
        for (const auto &buffer : buffers) HOLDS(buffer == std::vector<float>(3000, 1.f));
    });
}

static void differing_counts_fail_for_both() {
    run_peers({0, 0}, [](pcclComm_t *comm, int number) {
        std::vector<float> values(200, float(number + 1));
        auto mine = reduce_of(number == 0 ? 100 : 200, pcclFloat, pcclSum, 5);
        EXPECT(pcclInvalidArgument, pcclAllReduce(values.data(), values.data(), &mine, comm, nullptr));
        HOLDS(values == std::vector<float>(200, float(number + 1)));
        HOLDS(std::strlen(pcclGetLastError()) > 0);
        auto same = reduce_of(200, pcclFloat, pcclSum, 5);
        OK(pcclAllReduce(values.data(), values.data(), &same, comm, nullptr));
        HOLDS(values[0] == 3.f);
    });
}

static void shared_state() {
    run_peers({0, 0, 0}, [](pcclComm_t *comm, int number) {
        // The first two agree; the third receives. Two names stand for one tensor, as tied weights do.
        const float expected = 4;
        std::vector<float> weights(1 << 16, number == 2 ? 1 : expected), bias(10, 7);
        std::vector<pcclTensorInfo_t> infos{
            {"weights", weights.data(), weights.size(), pcclFloat, pcclDeviceCpu, false},
            {"bias", bias.data(), bias.size(), pcclFloat, pcclDeviceCpu, false},
            {"tied", weights.data(), weights.size(), pcclFloat, pcclDeviceCpu, false}};
        pcclSharedState_t state{3, infos.size(), infos.data()};
        pcclSharedStateSyncInfo_t info{};
        OK(pcclSynchronizeSharedState(comm, &state, &info));
        HOLDS(state.revision == 3 && weights == std::vector<float>(1 << 16, expected));
        HOLDS((info.rx_bytes > 0) == (number == 2));
        state.revision++;
        OK(pcclSynchronizeSharedState(comm, &state, &info));
        HOLDS(info.tx_bytes == 0 && info.rx_bytes == 0);

        // One that sends and two that receive.
        state.revision++;
        bias.assign(10, float(number));
        auto strategy = number == 1 ? PCCL_SHARED_STATE_SYNC_STRATEGY_SEND_ONLY
                                    : PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY;
        OK(pcclSynchronizeSharedState(comm, &state, strategy, &info));
        HOLDS(bias == std::vector<float>(10, 1.f));

        // Nobody sends.
        state.revision++;
        EXPECT(pcclNoSharedStateAvailable,
               pcclSynchronizeSharedState(comm, &state, PCCL_SHARED_STATE_SYNC_STRATEGY_RECEIVE_ONLY, nullptr));

        // One is beyond the next revision: it alone is rejected.
        if (number == 0) state.revision += 5;
        EXPECT(number == 0 ? pcclSharedStateSyncFailed : pcclSuccess,
               pcclSynchronizeSharedState(comm, &state, nullptr));
        HOLDS(number != 0 || std::strstr(pcclGetLastError(), "REVISION_INCREMENT_VIOLATION"));
    });
}

static void groups() {
    run_peers({0, 0, 1}, [](pcclComm_t *comm, int number) {
        HOLDS(attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) == 3);
        HOLDS(attribute(comm, PCCL_ATTRIBUTE_NUM_DISTINCT_PEER_GROUPS) == 2);
        HOLDS(attribute(comm, PCCL_ATTRIBUTE_LARGEST_PEER_GROUP_WORLD_SIZE) == 2);
        HOLDS(attribute(comm, PCCL_ATTRIBUTE_PEER_GROUP_WORLD_SIZE) == (number == 2 ? 1 : 2));
        float value = 1;
        auto sum = reduce_of(1, pcclFloat, pcclSum, 0);
        EXPECT(number == 2 ? pcclTooFewPeers : pcclSuccess, pcclAllReduce(&value, &value, &sum, comm, nullptr));
        bool pending = true;
        OK(pcclArePeersPending(comm, &pending));
        HOLDS(!pending);
        OK(pcclOptimizeTopology(comm));
    });
}

static void peer_that_leaves_after(std::chrono::milliseconds pause) {
    std::atomic<int> launched{0};
    run_peers({0, 0, 0}, [&](pcclComm_t *comm, int number) {
        std::vector<float> values(4000, 1), abandoned(4000, 1);
        auto first = reduce_of(4000, pcclFloat, pcclSum, 1);
        auto second = reduce_of(4000, pcclFloat, pcclSum, 2);
        pcclAsyncReduceOp_t handle{}, other{};
        if (number == 0) {
            // Leaves without a part in what the others wait for.
            while (launched < 2) std::this_thread::yield();
            std::this_thread::sleep_for(pause);
            return;
        }
        OK(pcclAllReduceAsync(values.data(), values.data(), &first, comm, &handle));
        OK(pcclAllReduceAsync(abandoned.data(), abandoned.data(), &second, comm, &other));
        launched++;
        EXPECT(pcclRankConnectionLost, pcclAwaitAsyncReduce(&handle, nullptr));
        HOLDS(values == std::vector<float>(4000, 1.f));
        HOLDS(world_of(comm) == 2);
        OK(pcclAllReduce(values.data(), values.data(), &first, comm, nullptr));
        HOLDS(values[0] == 2.f);
        // The second one is never awaited: destroying the communicator takes care of it.
    });
}

// The master has heard of what the others launched.
static void a_peer_that_leaves() {
    peer_that_leaves_after(std::chrono::milliseconds(100));
}

// It has not.
static void a_peer_that_leaves_at_once() {
    for (int i = 0; i < 20; i++) peer_that_leaves_after(std::chrono::milliseconds(0));
}

static void calls_end_when_their_communicator_is_destroyed() {
    std::thread caller;
    run_peers({0, 0}, [&caller](pcclComm_t *comm, int number) {
        if (number == 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));
            return;
        }
        caller = std::thread([comm] {
            float value = 1;
            auto sum = reduce_of(1, pcclFloat, pcclSum, 0);
            pcclResult_t result = pcclAllReduce(&value, &value, &sum, comm, nullptr);
            HOLDS(result == pcclMasterConnectionFailed || result == pcclRankConnectionLost);
            HOLDS(value == 1);
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        // run_peers destroys it now, and the caller is still in its call then.
    });
    caller.join();
}

static void a_peer_without_a_master() {
    pcclMasterInstance_t *master = nullptr;
    pcclCommCreateParams_t params{};
    pcclComm_t *comm = nullptr;
    params.master_address = loopback(0);
    OK(pcclInit());
    OK(pcclCreateMaster(params.master_address, &master));
    OK(pcclRunMaster(master));
    OK(pcclGetMasterAddress(master, &params.master_address));
    OK(pcclCreateCommunicator(&params, &comm));
    OK(pcclConnect(comm));
    OK(pcclDestroyMaster(master));
    // The library looks for the master for a while. Then the loop of a program that retries what may be retried
    // ends, and so does one that only looks at world sizes.
    while (pcclUpdateTopology(comm) == pcclUpdateTopologyFailed) {
    }
    int value = 0;
    EXPECT(pcclMasterConnectionFailed, pcclGetAttribute(comm, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, &value));
    OK(pcclDestroyCommunicator(comm));
}

int main(int, char **argv) {
    const std::string scenario = argv[1] ? argv[1] : "";
#define SCENARIO(name)                                                                                       \
    if (scenario == #name) {                                                                                 \
        name();                                                                                              \
        return 0;                                                                                            \
    }
    SCENARIO(sums)
    SCENARIO(every_type_and_operation)
    SCENARIO(quantised)
    SCENARIO(error_feedback_and_traffic)
    SCENARIO(tags_in_any_order)
    SCENARIO(several_with_retry)
    SCENARIO(differing_counts_fail_for_both)
    SCENARIO(shared_state)
    SCENARIO(groups)
    SCENARIO(a_peer_that_leaves)
    SCENARIO(a_peer_that_leaves_at_once)
    SCENARIO(calls_end_when_their_communicator_is_destroyed)
    SCENARIO(a_peer_without_a_master)
    std::fprintf(stderr, "there is no scenario %s\n", scenario.c_str());
    return 2;
}
