/* The ports of a run. Plain C99 and C++17; may be included before, after or without pccl.h. */
#ifndef CCOIP_H
#define CCOIP_H

#include "ccoip_inet.h"

/* Where a master listens unless told otherwise. */
#define CCOIP_PROTOCOL_PORT_MASTER 48148

/*
 * Ports that earlier designs listened on at every peer. A peer of Ringfold listens on one port of its own
 * choosing, so that peers on one machine never collide; these constants are kept for programs that name them.
 */
#define CCOIP_PROTOCOL_PORT_SHARED_STATE 48149
#define CCOIP_PROTOCOL_PORT_P2P 48150
#define CCOIP_PROTOCOL_PORT_BANDWIDTH 48151
#define CCOIP_PROTOCOL_PORT_BANDWIDTH_BENCHMARK CCOIP_PROTOCOL_PORT_BANDWIDTH

#endif /* CCOIP_H */
