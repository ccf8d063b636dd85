/*
 * socket_options: options of the sockets that core makes.  Internal to rpc, except that bench ps
 * uses it to measure core alone under the same conditions.
 */
#ifndef SPARRING_COMMON_RPC_SOCKET_OPTIONS_H
#define SPARRING_COMMON_RPC_SOCKET_OPTIONS_H

#include <grpc/grpc.h>
#include <stdbool.h>

/* The argument of a channel or server for its TCP sockets: within this host net_disable_pacing,
 * between hosts net_limit_unsent.  With another version of core it has no effect. */
grpc_arg rpc_socket_arg(bool within_host);

#endif
