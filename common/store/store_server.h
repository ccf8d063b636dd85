/*
 * store_server: the store that rank 0 serves: a table behind the gRPC service sparring.v1.Store.
 * Threads: one of the server's queue, one that ends calls whose time is over; no thread per waiter.
 */
#ifndef SPARRING_COMMON_STORE_STORE_SERVER_H
#define SPARRING_COMMON_STORE_STORE_SERVER_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/rpc/rpc.h"

struct store_server;

/* Bind and serve; `origin` says where the address came from, should the port be taken. */
enum status store_server_open(const struct endpoint *listen, const char *origin,
                              const struct rpc_security *security, struct store_server **ret_server,
                              struct error *err);

uint16_t store_server_port(const struct store_server *server);

/* The server beneath, for its counts. */
const struct rpc_server *store_server_rpc(const struct store_server *server);

/* Who still waits is told that the store closes.  NULL allowed. */
void store_server_close(struct store_server *server);

#endif
