/* Only who has a certificate of the run is let in. The argument is a directory with certificates. */
#include "check.h"

static const char *file(char *place, size_t size, const char *directory, const char *name) {
    HOLDS(snprintf(place, size, "%s/%s", directory, name) < (int)size);
    return place;
}

static void use(const char *directory, const char *ca, const char *certificate, const char *key) {
    char paths[3][512];
    OK(pcclSetTls(file(paths[0], sizeof paths[0], directory, ca), file(paths[1], sizeof paths[1], directory, certificate),
                  file(paths[2], sizeof paths[2], directory, key), NULL));
}

int main(int count, char **arguments) {
    pcclCommCreateParams_t params = {{{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, 0}, 0, 0};
    pcclMasterInstance_t *master = NULL;
    pcclComm_t *comm = NULL;
    HOLDS(count == 2);
    EXPECT(pcclInvalidArgument, pcclSetTls(arguments[1], NULL, NULL, NULL));
    OK(pcclInit());
    use(arguments[1], "ca.pem", "master.pem", "master.key");
    OK(pcclCreateMaster(params.master_address, &master));
    OK(pcclRunMaster(master));
    OK(pcclGetMasterAddress(master, &params.master_address));

    use(arguments[1], "other-ca.pem", "stranger.pem", "stranger.key");
    OK(pcclCreateCommunicator(&params, &comm));
    EXPECT(pcclMasterConnectionFailed, pcclConnect(comm));
    OK(pcclDestroyCommunicator(comm));

    use(arguments[1], "ca.pem", "alice.pem", "stranger.key");
    EXPECT(pcclInvalidArgument, pcclCreateCommunicator(&params, &comm));

    use(arguments[1], "ca.pem", "alice.pem", "alice.key");
    OK(pcclCreateCommunicator(&params, &comm));
    OK(pcclConnect(comm));
    OK(pcclDestroyCommunicator(comm));

    OK(pcclSetTls(NULL, NULL, NULL, NULL));
    OK(pcclCreateCommunicator(&params, &comm));
    EXPECT(pcclMasterConnectionFailed, pcclConnect(comm));
    OK(pcclDestroyCommunicator(comm));
    OK(pcclDestroyMaster(master));
    return 0;
}
