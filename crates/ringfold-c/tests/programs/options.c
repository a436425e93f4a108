/* Settings by name: they hold for what is created from now on. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <string.h>

static pcclComm_t *create(const pcclCommCreateParams_t *params) {
    pcclComm_t *comm = NULL;
    OK(pcclCreateCommunicator(params, &comm));
    return comm;
}

int main(void) {
    pcclCommCreateParams_t params = {{{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, 0}, 0, 0};
    pcclMasterInstance_t *master = NULL;
    pcclComm_t *first = NULL, *second = NULL;
    OK(pcclInit());

    EXPECT(pcclInvalidArgument, pcclSetOption(NULL, "1"));
    EXPECT(pcclInvalidArgument, pcclSetOption("peers_maxx", "1"));
    HOLDS(strstr(pcclGetLastError(), "did you mean \"peers_max\"?") != NULL);
    EXPECT(pcclInvalidArgument, pcclSetOption("peers_max", "many"));
    HOLDS(strstr(pcclGetLastError(), "must be a number, 1 to 1024") != NULL);

    /* It has priority over the environment. */
    HOLDS(setenv("RINGFOLD_PEERS_MAX", "2", 1) == 0);
    OK(pcclSetOption("peers_max", "1"));
    OK(pcclCreateMaster(params.master_address, &master));
    OK(pcclSetOption("peers_max", NULL));
    OK(pcclRunMaster(master));
    OK(pcclGetMasterAddress(master, &params.master_address));
    first = create(&params);
    OK(pcclConnect(first));
    second = create(&params);
    EXPECT(pcclMasterConnectionFailed, pcclConnect(second));
    HOLDS(strstr(pcclGetLastError(), "the run is full") != NULL);
    OK(pcclDestroyCommunicator(second));
    OK(pcclDestroyCommunicator(first));
    OK(pcclDestroyMaster(master));

    /* An invalid variable is an error. */
    HOLDS(setenv("RINGFOLD_HEARTBEAT", "soon", 1) == 0);
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, &first));
    HOLDS(strstr(pcclGetLastError(), "invalid RINGFOLD_HEARTBEAT") != NULL);
    OK(pcclSetOption("heartbeat", "400ms"));
    first = create(&params);
    OK(pcclDestroyCommunicator(first));
    return 0;
}
