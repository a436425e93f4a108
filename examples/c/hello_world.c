/*
 * A training loop in miniature, in C: join, admit others, agree on the state, reduce; five steps.
 *
 *   hello_world [IP:PORT]      the master's address; 127.0.0.1:48148 if nothing is said
 *
 * Start a master and two or more of these. Each ends with exit code 0 after the last step.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include <pccl.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEPS 5

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        pcclResult_t result_ = (call);                                                                       \
        if (result_ != pcclSuccess) {                                                                        \
            fprintf(stderr, "%s: %s (%s)\n", #call, pcclGetErrorString(result_), pcclGetLastError());         \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* "127.0.0.1:48148" as an address. */
static ccoip_socket_address_t address_of(const char *text) {
    ccoip_socket_address_t address = {.inet = {.protocol = inetIPv4}};
    unsigned a, b, c, d, port;
    if (sscanf(text, "%3u.%3u.%3u.%3u:%5u", &a, &b, &c, &d, &port) != 5 || (a | b | c | d) > 255 || port > 65535) {
        fprintf(stderr, "%s is no address; 127.0.0.1:48148 is one\n", text);
        exit(2);
    }
    address.inet.ipv4 = (ccoip_ipv4_address_t) {{(uint8_t) a, (uint8_t) b, (uint8_t) c, (uint8_t) d}};
    address.port = (uint16_t) port;
    return address;
}

static int world_of(const pcclComm_t *comm) {
    int world = 0;
    CHECK(pcclGetAttribute(comm, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, &world));
    return world;
}

/* Admits whoever waits, until there are two. A failed vote is voted on again, a lost master ends the program. */
static void admit(pcclComm_t *comm) {
    do {
        pcclResult_t result;
        while ((result = pcclUpdateTopology(comm)) == pcclUpdateTopologyFailed) {
            fprintf(stderr, "the topology could not be updated: %s\n", pcclGetLastError());
        }
        CHECK(result);
        if (world_of(comm) < 2) {
            const struct timespec pause = {0, 200 * 1000 * 1000};
            nanosleep(&pause, NULL);
        }
    } while (world_of(comm) < 2);
}

int main(int argc, char **argv) {
    pcclCommCreateParams_t params = {.master_address = address_of(argc > 1 ? argv[1] : "127.0.0.1:48148")};
    pcclComm_t *comm = NULL;
    CHECK(pcclInit());
    CHECK(pcclCreateCommunicator(&params, &comm));
    CHECK(pcclConnect(comm));

    float weights[8] = {0};
    pcclTensorInfo_t tensor = {.name = "weights", .data = weights, .count = 8, .datatype = pcclFloat};
    pcclSharedState_t state = {.revision = 0, .count = 1, .infos = &tensor};

    /* Who was just admitted was so by the others' vote, and goes on with them; all others vote at each step. */
    bool admitted = world_of(comm) > 1;
    while (state.revision < STEPS) {
        if (!admitted) admit(comm);
        admitted = false;

        pcclSharedStateSyncInfo_t moved;
        CHECK(pcclSynchronizeSharedState(comm, &state, &moved));

        float gradient[8];
        for (int i = 0; i < 8; i++) gradient[i] = (float) (i + 1);
        pcclReduceDescriptor_t average = {
            .count = 8, .op = pcclAvg, .src_descriptor = {.datatype = pcclFloat}};
        pcclReduceInfo_t info;
        pcclResult_t result;
        /* In place: after a failure the gradient is as it was, so it is simply reduced again. */
        while ((result = pcclAllReduce(gradient, gradient, &average, comm, &info)) == pcclRankConnectionLost) {
            fprintf(stderr, "the reduce was aborted: %s\n", pcclGetLastError());
        }
        if (result == pcclTooFewPeers) continue; /* The others are gone: wait for new ones, and do the step again. */
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
