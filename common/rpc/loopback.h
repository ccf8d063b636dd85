/*
 * loopback: what core's sockets inside a host are told.  Internal to rpc, but for bench ps, which
 * measures core alone and under the same conditions.
 */
#ifndef SPARRING_COMMON_RPC_LOOPBACK_H
#define SPARRING_COMMON_RPC_LOOPBACK_H

#include <grpc/grpc.h>

/* The setting of a channel or server whose connections stay inside this host: see net_unpace.  With
 * a core that is not the one these sources know it is one without effect. */
grpc_arg rpc_loopback_arg(void);

#endif
