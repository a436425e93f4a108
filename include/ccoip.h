/* The ports of a run. C99 and C++17; may be included before, after or without pccl.h. */
#ifndef CCOIP_H
#define CCOIP_H

#include "ccoip_inet.h"

/* The default port of a master. */
#define CCOIP_PROTOCOL_PORT_MASTER 48148

/* For compatibility only: a peer of Ringfold listens on one free port. */
#define CCOIP_PROTOCOL_PORT_SHARED_STATE 48149
#define CCOIP_PROTOCOL_PORT_P2P 48150
#define CCOIP_PROTOCOL_PORT_BANDWIDTH 48151
#define CCOIP_PROTOCOL_PORT_BANDWIDTH_BENCHMARK CCOIP_PROTOCOL_PORT_BANDWIDTH

#endif /* CCOIP_H */
