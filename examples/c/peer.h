/* Shared by the C examples: error handling that ends the program, the arguments, and votes with retries. */
#ifndef EXAMPLES_PEER_H
#define EXAMPLES_PEER_H

#include <pccl.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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
        fprintf(stderr, "%s is not an address; expected IP:PORT, e.g. 127.0.0.1:48148\n", text);
        exit(2);
    }
    address.inet.ipv4 = (ccoip_ipv4_address_t) {{(uint8_t) a, (uint8_t) b, (uint8_t) c, (uint8_t) d}};
    address.port = (uint16_t) port;
    return address;
}

/* The argument PEERS: the peers that a step needs; 2 if it is not given. */
static inline int peers_of(int argc, char **argv) {
    if (argc <= 2) return 2;
    char *end;
    const long peers = strtol(argv[2], &end, 10);
    if (*end != '\0' || peers < 2 || peers > 1000) {
        fprintf(stderr, "%s is not a number of peers; expected 2 to 1000\n", argv[2]);
        exit(2);
    }
    return (int) peers;
}

static int world_of(const pcclComm_t *comm) {
    int world = 0;
    CHECK(pcclGetAttribute(comm, PCCL_ATTRIBUTE_CURRENT_WORLD_SIZE, &world));
    return world;
}

/* Admits waiting peers. A failed vote is repeated; a lost master ends the program. */
static void admit(pcclComm_t *comm) {
    pcclResult_t result;
    while ((result = pcclUpdateTopology(comm)) == pcclUpdateTopologyFailed) {
        fprintf(stderr, "the topology could not be updated: %s\n", pcclGetLastError());
    }
    CHECK(result);
}

static void pause_ms(long milliseconds) {
    const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

/* Joins the run; returns when the others have admitted this peer. */
static pcclComm_t *join(const char *master) {
    pcclCommCreateParams_t params = {.master_address = address_of(master)};
    pcclComm_t *comm = NULL;
    CHECK(pcclInit());
    CHECK(pcclCreateCommunicator(&params, &comm));
    CHECK(pcclConnect(comm));
    return comm;
}

#endif /* EXAMPLES_PEER_H */
