/*
 * A run that peers join while it is running, in C. The first peer trains alone; a later peer receives the weights and
 * the current step, and continues with the others. All end with the same weights.
 *
 *   joining_late [IP:PORT [STEPS]]      defaults: 127.0.0.1:48148 and 60 steps
 *
 * Start a master, one of these, and a second or two later others. Each ends with exit code 0 after the last step.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "peer.h"

#define ELEMENTS (1 << 20)

static float weights[ELEMENTS], gradient[ELEMENTS];

/* Admits waiting peers. Asking first is cheaper than a vote on a topology that does not change. */
static void admit_if_anyone_waits(pcclComm_t *comm) {
    bool pending = false;
    pcclResult_t result;
    while ((result = pcclArePeersPending(comm, &pending)) == pcclRankConnectionLost) {
        fprintf(stderr, "the vote failed: %s\n", pcclGetLastError());
    }
    CHECK(result);
    if (pending) admit(comm);
}

/* The average of all peers' gradients; without other peers, this peer's own. */
static void reduce(pcclComm_t *comm) {
    pcclReduceDescriptor_t average = {
        .count = ELEMENTS, .op = pcclAvg, .src_descriptor = {.datatype = pcclFloat}};
    pcclResult_t result;
    while ((result = pcclAllReduce(gradient, gradient, &average, comm, NULL)) == pcclRankConnectionLost) {
        fprintf(stderr, "the reduce was aborted: %s\n", pcclGetLastError());
    }
    if (result != pcclTooFewPeers) CHECK(result);
}

int main(int argc, char **argv) {
    pcclComm_t *comm = join(argc > 1 ? argv[1] : "127.0.0.1:48148");
    const uint64_t steps = strtoull(argc > 2 ? argv[2] : "60", NULL, 10);
    pcclTensorInfo_t tensor = {.name = "weights", .data = weights, .count = ELEMENTS, .datatype = pcclFloat};
    pcclSharedState_t state = {.revision = 0, .count = 1, .infos = &tensor};
    bool admitted = world_of(comm) > 1;
    for (;;) {
        if (!admitted) admit_if_anyone_waits(comm);
        pcclSharedStateSyncInfo_t moved;
        CHECK(pcclSynchronizeSharedState(comm, &state, &moved));
        if (admitted) {
            printf("joined at step %d, %llu bytes received\n", (int) state.revision,
                   (unsigned long long) moved.rx_bytes);
        }
        admitted = false;
        if (state.revision >= steps) break;

        for (size_t i = 0; i < ELEMENTS; i++) gradient[i] = 1;
        reduce(comm);
        for (size_t i = 0; i < ELEMENTS; i++) weights[i] += gradient[i];
        state.revision++;
        printf("step %d with %d peers\n", (int) state.revision, world_of(comm));
        fflush(stdout);
        pause_ms(50); /* The work of a step. */
    }
    for (size_t i = 0; i < ELEMENTS; i++) {
        if (weights[i] != (float) steps) {
            fprintf(stderr, "the weights are not those of all steps\n");
            return 1;
        }
    }
    CHECK(pcclDestroyCommunicator(comm));
    return 0;
}
