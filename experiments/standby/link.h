/*
 * link: a client's call to one standby daemon.  Internal to standby.
 *
 * Threads: the call's handlers run on gRPC's thread; everything here belongs to the caller's, which
 * waits for wake_fd.
 */
#ifndef SPARRING_EXPERIMENTS_STANDBY_LINK_H
#define SPARRING_EXPERIMENTS_STANDBY_LINK_H

#include "common/rpc/rpc.h"
#include "common/wire/wire_standby.h"

#include <pthread.h>

struct link {
    char address[300]; /* of the daemon, for texts */
    int wake_fd;       /* an eventfd: something below has changed; reset by link_take */
    struct rpc_client *client;
    struct rpc_call *call; /* a reference */
    int64_t beat_ns;       /* when the next sign of life is due */
    pthread_mutex_t lock;  /* of what follows */
    bool is_accepted;      /* the daemon has said something */
    bool has_reply;        /* `reply` is not taken yet; until then the daemon's next one waits */
    struct standby_reply reply;
    struct error failure; /* of a reply that could not be read */
    bool is_closed;
    struct rpc_result result;
    int64_t heard_ns;
};

/* Connect and send the description of the task.  The caller closes the link, also on failure. */
enum status link_open(struct link *l, const char *address, const struct rpc_security *security,
                      const struct standby_request *request, struct error *err);

/* Send a sign of life, if one is due, or the wish that the task stops. */
void link_tell(struct link *l, bool stop);

/* The next reply that is no sign of life, for which the caller then owns `data`; with `kind` 0:
 * there is none yet.  A failure when the call has ended, its text names the daemon. */
enum status link_take(struct link *l, struct standby_reply *ret, struct error *err);

bool link_is_accepted(struct link *l);

/* Waits up to 2 s until the daemon knows.  A link that was not opened has wake_fd -1. */
void link_close(struct link *l);

#endif
