/*
 * mesh_accept: accepts the connections of the ranks of a job and rejects all others.
 * Threads: one caller.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_MESH_ACCEPT_H
#define SPARRING_COMMON_COLLECTIVE_MESH_ACCEPT_H

#include "common/collective/mesh/mesh_wire.h"

struct mesh_acceptor;

/* Accept connections whose hello has this token and world size. */
enum status mesh_acceptor_open(int listen_fd, const struct mesh_hello *self,
                               struct mesh_acceptor **ret, struct error *err);

/* The next rank that sends a valid hello; the caller owns *ret_fd then.  Silent connections and
 * those of other programs or jobs are closed.  STATUS_TIMEOUT at the deadline. */
enum status mesh_acceptor_next(struct mesh_acceptor *a, int64_t deadline_ns, int *ret_fd,
                               struct mesh_hello *ret_hello, struct error *err);

/* Close a connection whose hello names a rank that is not expected. */
void mesh_acceptor_refuse(struct mesh_acceptor *a, int fd, const struct mesh_hello *hello);

/* STATUS_TIMEOUT: "ranks 2, 5 did not connect", and which connections were rejected. */
enum status mesh_acceptor_missing(const struct mesh_acceptor *a, const struct mesh *m,
                                  struct error *err);

/* Closes the pending connections; NULL allowed. */
void mesh_acceptor_close(struct mesh_acceptor *a);

#endif
