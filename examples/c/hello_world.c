/*
 * A small training loop in C: join, admit other peers, sync the state, reduce; five steps.
 *
 *   hello_world [IP:PORT [PEERS]]
 *
 * IP:PORT is the master's address (default 127.0.0.1:48148); a step begins with
 * PEERS or more peers (default 2).
 *
 * Start a master and PEERS or more of these. Each ends with exit code 0 after the last step.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "peer.h"

#define STEPS 5

/* Admits waiting peers until there are this many peers. */
static void admit_until(pcclComm_t *comm, int peers) {
    admit(comm);
    while (world_of(comm) < peers) {
        pause_ms(200);
        admit(comm);
    }
}

int main(int argc, char **argv) {
    const int peers = peers_of(argc, argv);
    pcclComm_t *comm = join(argc > 1 ? argv[1] : "127.0.0.1:48148");

    float weights[8] = {0};
    pcclTensorInfo_t tensor = {.name = "weights", .data = weights, .count = 8, .datatype = pcclFloat};
    pcclSharedState_t state = {.revision = 0, .count = 1, .infos = &tensor};

    /* A new peer was admitted by the others' vote, and continues with them; all other peers vote at each step. */
    bool admitted = world_of(comm) >= peers;
    while (state.revision < STEPS) {
        if (!admitted) admit_until(comm, peers);
        admitted = false;

        pcclSharedStateSyncInfo_t moved;
        CHECK(pcclSynchronizeSharedState(comm, &state, &moved));

        float gradient[8];
        for (int i = 0; i < 8; i++) gradient[i] = (float) (i + 1);
        pcclReduceDescriptor_t average = {
            .count = 8, .op = pcclAvg, .src_descriptor = {.datatype = pcclFloat}};
        pcclReduceInfo_t info;
        pcclResult_t result;
        /* In place: after a failure the gradient is restored, so it can be reduced again. */
        while ((result = pcclAllReduce(gradient, gradient, &average, comm, &info)) == pcclRankConnectionLost) {
            fprintf(stderr, "the reduce was aborted: %s\n", pcclGetLastError());
        }
        if (result == pcclTooFewPeers) continue; /* No other peer is left: wait for new peers, then repeat the step. */
        CHECK(result);

        for (int i = 0; i < 8; i++) weights[i] += gradient[i];
        state.revision++;
        printf("step %d with %u peers: weights[7] = %g, %llu bytes of state received\n", (int) state.revision,
               (unsigned) info.local_world_size, (double) weights[7], (unsigned long long) moved.rx_bytes);
        fflush(stdout);
    }
    CHECK(pcclDestroyCommunicator(comm));
    return 0;
}
