/* Only who knows the join token is let in. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

int main(void) {
    pcclCommCreateParams_t params = {{{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, 0}, 0, 0};
    pcclMasterInstance_t *master = NULL;
    pcclComm_t *comm = NULL;
    OK(pcclInit());
    HOLDS(setenv("PCCL_JOIN_TOKEN", "open sesame", 1) == 0);
    OK(pcclCreateMaster(params.master_address, &master));
    OK(pcclRunMaster(master));
    OK(pcclGetMasterAddress(master, &params.master_address));

    HOLDS(setenv("PCCL_JOIN_TOKEN", "open barley", 1) == 0);
    OK(pcclCreateCommunicator(&params, &comm));
    EXPECT(pcclMasterConnectionFailed, pcclConnect(comm));
    OK(pcclDestroyCommunicator(comm));

    HOLDS(unsetenv("PCCL_JOIN_TOKEN") == 0);
    OK(pcclCreateCommunicator(&params, &comm));
    EXPECT(pcclMasterConnectionFailed, pcclConnect(comm));
    OK(pcclDestroyCommunicator(comm));

    HOLDS(setenv("PCCL_JOIN_TOKEN_FILE", "/nonexistent/token", 1) == 0);
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, &comm));

    HOLDS(setenv("PCCL_JOIN_TOKEN", "open sesame", 1) == 0);
    OK(pcclCreateCommunicator(&params, &comm));
    OK(pcclConnect(comm));
    OK(pcclDestroyCommunicator(comm));
    OK(pcclDestroyMaster(master));
    return 0;
}
