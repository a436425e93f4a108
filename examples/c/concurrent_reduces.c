/*
 * Many gradients at once, in C: each tensor is reduced with its own tag, a few at a time, and operations that a
 * dying peer aborts are repeated.
 *
 *   concurrent_reduces [IP:PORT [PEERS]]
 *
 * IP:PORT is the master's address (default 127.0.0.1:48148); a step begins with
 * PEERS or more peers (default 2).
 *
 * Start a master and PEERS or more of these. Each ends with exit code 0 after the last step.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "peer.h"

#define STEPS 4
#define TENSORS 16
#define ELEMENTS 50000
#define IN_FLIGHT_MAX 4 /* May differ between peers. */

/* The gradients of one step; they are the same on every peer, so that the average is known. */
static float gradients[TENSORS][ELEMENTS];

static float gradient_of(uint64_t step, size_t tensor) {
    return (float) (step + tensor);
}

static void compute(uint64_t step) {
    for (size_t i = 0; i < TENSORS; i++) {
        for (size_t k = 0; k < ELEMENTS; k++) gradients[i][k] = gradient_of(step, i);
    }
}

static pcclResult_t reduce(pcclComm_t *comm, pcclReduceInfo_t *info) {
    pcclReduceOpDescriptor_t operations[TENSORS];
    for (size_t i = 0; i < TENSORS; i++) {
        operations[i] = (pcclReduceOpDescriptor_t) {
            .sendbuf = gradients[i],
            .recvbuf = gradients[i],
            .descriptor = {
                .count = ELEMENTS, .op = pcclAvg, .tag = i, .src_descriptor = {.datatype = pcclFloat}}};
    }
    return pcclAllReduceMultipleWithRetry(operations, TENSORS, comm, info, IN_FLIGHT_MAX);
}

int main(int argc, char **argv) {
    const int peers = peers_of(argc, argv);
    pcclComm_t *comm = join(argc > 1 ? argv[1] : "127.0.0.1:48148");
    uint64_t done = 0; /* Steps done; the same on all peers. */
    pcclTensorInfo_t tensor = {.name = "steps", .data = &done, .count = 1, .datatype = pcclUint64};
    pcclSharedState_t state = {.revision = 0, .count = 1, .infos = &tensor};
    bool admitted = world_of(comm) >= peers;
    while (state.revision < STEPS) {
        if (!admitted) admit(comm);
        admitted = false;
        if (world_of(comm) < peers) {
            pause_ms(200);
            continue;
        }
        CHECK(pcclSynchronizeSharedState(comm, &state, NULL));

        compute(state.revision);
        pcclReduceInfo_t info;
        pcclResult_t result = reduce(comm, &info);
        if (result == pcclTooFewPeers) continue; /* Wait for other peers, then repeat the step. */
        CHECK(result);
        for (size_t i = 0; i < TENSORS; i++) {
            if (gradients[i][ELEMENTS - 1] != gradient_of(state.revision, i)) {
                fprintf(stderr, "wrong average\n");
                return 1;
            }
        }
        done++;
        state.revision++;
        printf("step %d with %u peers: %d tensors, %llu bytes sent\n", (int) state.revision,
               (unsigned) info.local_world_size, TENSORS, (unsigned long long) info.tx_bytes);
        fflush(stdout);
    }
    CHECK(pcclDestroyCommunicator(comm));
    return 0;
}
