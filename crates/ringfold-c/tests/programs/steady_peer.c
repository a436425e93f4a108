/* A peer for tests: sums in a loop with as many peers as its argument says, and ends when the inputs of all of them have.
 * Nothing is tried again: each call must succeed. The masters are those of RINGFOLD_MASTERS. */
#define _POSIX_C_SOURCE 200112L
#include "check.h"

#include <poll.h>
#include <unistd.h>

static int input_has_ended(void) {
    struct pollfd input = {STDIN_FILENO, POLLIN, 0};
    char byte;
    return poll(&input, 1, 10) > 0 && read(STDIN_FILENO, &byte, 1) == 0;
}

int main(int argc, char **argv) {
    /* Nobody listens at port 1: the variable takes precedence. */
    pcclCommCreateParams_t params = {{{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, 1}, 0, 0};
    pcclReduceDescriptor_t descriptor = {0};
    pcclComm_t *comm = NULL;
    int peers = argc > 1 ? atoi(argv[1]) : 2, world = 0, steps = 0;
    double ended = 0;
    OK(pcclInit());
    OK(pcclCreateCommunicator(&params, &comm));
    OK(pcclConnect(comm));
    for (;;) {
        OK(pcclGetAttribute(comm, PCCL_ATTRIBUTE_GLOBAL_WORLD_SIZE, &world));
        if (world == peers) break;
        OK(pcclUpdateTopology(comm));
    }
    descriptor.count = 2;
    descriptor.op = pcclSum;
    descriptor.src_descriptor.datatype = pcclDouble;
    while (ended < peers) {
        /* How many peers there are, and how many of them would end. */
        double values[2] = {1, 0};
        pcclReduceInfo_t info;
        values[1] = input_has_ended();
        OK(pcclAllReduce(values, values, &descriptor, comm, &info));
        HOLDS(values[0] == peers && info.local_world_size == (uint32_t) peers);
        ended = values[1];
        printf("step %d\n", ++steps);
        fflush(stdout);
    }
    OK(pcclDestroyCommunicator(comm));
    return 0;
}
