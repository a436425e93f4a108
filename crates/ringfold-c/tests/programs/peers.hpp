// Peers of a run as threads of one program.
#ifndef PEERS_HPP
#define PEERS_HPP

#include "check.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

inline int attribute(const pcclComm_t *comm, pcclAttribute_t which) {
    int value = -1;
    OK(pcclGetAttribute(comm, which, &value));
    return value;
}

inline int world_of(const pcclComm_t *comm) {
    return attribute(comm, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE);
}

// Votes until so many peers are in the run.
inline void gather(pcclComm_t *comm, int peers) {
    while (attribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE) < peers) {
        pcclResult_t result = pcclUpdateTopology(comm);
        if (result != pcclUpdateTopologyFailed) OK(result);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

// Runs `body(comm, number)` in as many connected peers as `groups` has entries, each in the group it names.
inline void run_peers(const std::vector<uint32_t> &groups, const std::function<void(pcclComm_t *, int)> &body) {
    pcclMasterInstance_t *master = nullptr;
    ccoip_socket_address_t address = loopback(0);
    OK(pcclInit());
    OK(pcclCreateMaster(address, &master));
    OK(pcclRunMaster(master));
    OK(pcclGetMasterAddress(master, &address));
    const int count = static_cast<int>(groups.size());
    std::vector<std::thread> threads;
    for (int number = 0; number < count; number++) {
        threads.emplace_back([&, number] {
            pcclCommCreateParams_t params{};
            params.master_address = address;
            params.peer_group = groups[number];
            pcclComm_t *comm = nullptr;
            OK(pcclCreateCommunicator(&params, &comm));
            OK(pcclConnect(comm));
            gather(comm, count);
            body(comm, number);
            OK(pcclDestroyCommunicator(comm));
        });
    }
    for (auto &thread : threads) thread.join();
    OK(pcclDestroyMaster(master));
}

inline pcclReduceDescriptor_t reduce_of(size_t count, pcclDataType_t type, pcclRedOp_t op, uint64_t tag) {
    pcclReduceDescriptor_t descriptor{};
    descriptor.count = count;
    descriptor.op = op;
    descriptor.tag = tag;
    descriptor.src_descriptor.datatype = type;
    return descriptor;
}

#endif // PEERS_HPP
