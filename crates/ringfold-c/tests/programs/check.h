/* Checks of the test programs: a call that does not end as it should ends the program, and says why. */
#ifndef CHECK_H
#define CHECK_H

#include <pccl.h>
#include <stdio.h>
#include <stdlib.h>

/* The call must end with this result. */
#define EXPECT(expected, call)                                                                               \
    do {                                                                                                     \
        pcclResult_t expect_got_ = (call);                                                                   \
        if (expect_got_ != (expected)) {                                                                     \
            fprintf(stderr, "%s:%d: %s: %d and not %d: %s\n", __FILE__, __LINE__, #call, (int) expect_got_,   \
                    (int) (expected), pcclGetLastError());                                                   \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

#define OK(call) EXPECT(pcclSuccess, call)

/* This must hold. */
#define HOLDS(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);                    \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* An address of this machine. */
static inline ccoip_socket_address_t loopback(uint16_t port) {
    ccoip_socket_address_t address = {{inetIPv4, {{127, 0, 0, 1}}, {{0}}}, 0};
    address.port = port;
    return address;
}

#endif /* CHECK_H */
