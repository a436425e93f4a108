/* A master for tests: listens on 127.0.0.1 at the port that is its argument (0 for any), prints where it listens,
 * and ends when its input does. */
#include "check.h"

int main(int argc, char **argv) {
    ccoip_socket_address_t address = loopback(argc > 1 ? (uint16_t) atoi(argv[1]) : 0);
    pcclMasterInstance_t *master = NULL;
    OK(pcclCreateMaster(address, &master));
    OK(pcclRunMaster(master));
    OK(pcclGetMasterAddress(master, &address));
    printf("%d\n", (int) address.port);
    fflush(stdout);
    while (getchar() != EOF) {
    }
    OK(pcclInterruptMaster(master));
    OK(pcclMasterAwaitTermination(master));
    OK(pcclDestroyMaster(master));
    return 0;
}
