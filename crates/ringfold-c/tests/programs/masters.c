/* The life of masters: what may be called when, and a port that is free as soon as its master is gone. */
#include "check.h"

static void misuse(void) {
    ccoip_socket_address_t address = loopback(0), taken;
    pcclMasterInstance_t *master = NULL, *other = NULL;
    EXPECT(pcclInvalidArgument, pcclCreateMaster(address, NULL));
    EXPECT(pcclInvalidArgument, pcclRunMaster(NULL));
    EXPECT(pcclInvalidArgument, pcclInterruptMaster(NULL));
    EXPECT(pcclInvalidArgument, pcclMasterAwaitTermination(NULL));
    EXPECT(pcclInvalidArgument, pcclDestroyMaster(NULL));
    address.inet.protocol = (ccoip_inet_protocol_t) 2;
    EXPECT(pcclInvalidArgument, pcclCreateMaster(address, &master));
    address.inet.protocol = inetIPv4;

    OK(pcclCreateMaster(address, &master));
    EXPECT(pcclInvalidUsage, pcclMasterAwaitTermination(master));
    /* Creating binds: the port is known, and nobody else can take it. */
    OK(pcclGetMasterAddress(master, &address));
    HOLDS(address.port != 0 && address.inet.protocol == inetIPv4 && address.inet.ipv4.data[0] == 127);
    OK(pcclCreateMaster(address, &other));
    EXPECT(pcclInvalidUsage, pcclGetMasterAddress(other, &taken));
    EXPECT(pcclInvalidUsage, pcclRunMaster(other));
    OK(pcclRunMaster(master));
    EXPECT(pcclInvalidArgument, pcclRunMaster(master));
    OK(pcclGetMasterAddress(master, &taken));
    HOLDS(taken.port == address.port);
    EXPECT(pcclInvalidUsage, pcclRunMaster(other));

    OK(pcclInterruptMaster(master));
    OK(pcclInterruptMaster(master));
    OK(pcclMasterAwaitTermination(master));
    OK(pcclMasterAwaitTermination(master));
    EXPECT(pcclInvalidArgument, pcclRunMaster(master));
    OK(pcclDestroyMaster(master));
    EXPECT(pcclInvalidArgument, pcclDestroyMaster(master));

    /* One that found its address taken binds when it runs, and one that never runs gives its address back. */
    OK(pcclRunMaster(other));
    OK(pcclDestroyMaster(other));
    OK(pcclCreateMaster(address, &master));
    OK(pcclDestroyMaster(master));
    OK(pcclCreateMaster(address, &other));
    OK(pcclGetMasterAddress(other, &taken));
    OK(pcclDestroyMaster(other));
}

static void cycles(int with_a_peer) {
    pcclCommCreateParams_t params = {{{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, 0}, 0, 0};
    pcclMasterInstance_t *master = NULL;
    pcclComm_t *comm = NULL;
    int i;
    for (i = 0; i < 5; i++) {
        OK(pcclCreateMaster(params.master_address, &master));
        OK(pcclRunMaster(master));
        OK(pcclGetMasterAddress(master, &params.master_address));
        if (with_a_peer) {
            OK(pcclCreateCommunicator(&params, &comm));
            OK(pcclConnect(comm));
        }
        OK(pcclInterruptMaster(master));
        OK(pcclMasterAwaitTermination(master));
        OK(pcclDestroyMaster(master));
        /* A communicator may outlive its master. */
        if (with_a_peer) OK(pcclDestroyCommunicator(comm));
    }
}

int main(void) {
    ccoip_socket_address_t ipv6 = {{inetIPv6, {{0}}, {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}}, 0};
    pcclMasterInstance_t *master = NULL;
    misuse();
    OK(pcclInit());
    cycles(0);
    cycles(1);
    /* One that still runs is stopped by being destroyed. */
    OK(pcclCreateMaster(loopback(0), &master));
    OK(pcclRunMaster(master));
    OK(pcclDestroyMaster(master));
    /* IPv6, where the machine has it. */
    OK(pcclCreateMaster(ipv6, &master));
    if (pcclRunMaster(master) == pcclSuccess) {
        OK(pcclGetMasterAddress(master, &ipv6));
        HOLDS(ipv6.port != 0 && ipv6.inet.protocol == inetIPv6 && ipv6.inet.ipv6.data[15] == 1);
    } else {
        fprintf(stderr, "IPv6 is not tested: %s\n", pcclGetLastError());
    }
    OK(pcclDestroyMaster(master));
    return 0;
}
