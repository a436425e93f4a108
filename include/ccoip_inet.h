/* Internet addresses for pccl.h. C99 and C++17; needs no other header of this project. */
#ifndef CCOIP_INET_H
#define CCOIP_INET_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The address family of a ccoip_inet_address_t. */
typedef enum ccoip_inet_protocol_t {
    inetIPv4 = 0,
    inetIPv6 = 1
} ccoip_inet_protocol_t;

/* An IPv4 address in network order: {127, 0, 0, 1}. */
typedef struct ccoip_ipv4_address {
    uint8_t data[4];
} ccoip_ipv4_address_t;

/* An IPv6 address in network order: ::1 is fifteen zeros and a one. */
typedef struct ccoip_ipv6_address {
    uint8_t data[16];
} ccoip_ipv6_address_t;

/* An address of one family; the other field is ignored and may be omitted in an initialiser. */
typedef struct ccoip_inet_address {
    ccoip_inet_protocol_t protocol;
    ccoip_ipv4_address_t ipv4;
    ccoip_ipv6_address_t ipv6;
} ccoip_inet_address_t;

/* An address and a port in host byte order: 48148. */
typedef struct ccoip_socket_address {
    ccoip_inet_address_t inet;
    uint16_t port;
} ccoip_socket_address_t;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CCOIP_INET_H */
