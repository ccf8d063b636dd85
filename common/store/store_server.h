/*
 * store_server: rank 0's gRPC service sparring.v1.Store over a store_table.
 * Threads: the server's queue thread, and one that ends calls at their deadline; none per waiter.
 */
#ifndef SPARRING_COMMON_STORE_STORE_SERVER_H
#define SPARRING_COMMON_STORE_STORE_SERVER_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/rpc/rpc.h"

struct store_server;

/* Bind and serve; `origin` is the source of the address, for the error when the port is taken. */
enum status store_server_open(const struct endpoint *listen, const char *origin,
                              const struct rpc_security *security, struct store_server **ret_server,
                              struct error *err);

uint16_t store_server_port(const struct store_server *server);

/* The underlying rpc server, for its call counts. */
const struct rpc_server *store_server_rpc(const struct store_server *server);

/* Pending waits end with STATUS_UNAVAILABLE.  NULL allowed. */
void store_server_close(struct store_server *server);

#endif
