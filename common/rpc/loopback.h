/*
 * loopback: socket options for core's connections within a host.  Internal to rpc, except that
 * bench ps uses it to measure core alone under the same conditions.
 */
#ifndef SPARRING_COMMON_RPC_LOOPBACK_H
#define SPARRING_COMMON_RPC_LOOPBACK_H

#include <grpc/grpc.h>

/* The argument of a channel or server whose connections stay within this host: see
 * net_disable_pacing.  With another version of core it has no effect. */
grpc_arg rpc_loopback_arg(void);

#endif
