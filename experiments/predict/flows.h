/*
 * flows: messages on connections whose hosts share their links, as a fluid.  Between two changes
 * all rates are constant: weighted max-min fair, and none above its connection's limit.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_FLOWS_H
#define SPARRING_EXPERIMENTS_PREDICT_FLOWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLOWS_RATE_MAX 1e15 /* bytes/s, where nothing limits */

/* One direction between a rank and a server. */
struct connection {
    unsigned rank, server;
    bool is_reply;
    unsigned from, to;    /* hosts */
    double weight, limit; /* bytes/s; who changes them sets has_changed */
    /* of flows.c, but for the memory: */
    double rate, left_bytes; /* of its first message */
    uint32_t *messages;      /* partitions; borrowed, a ring of `capacity` */
    size_t first, length, capacity;
    size_t taken;   /* of length; on their way or next, in this order */
    bool is_shared; /* its rate is set */
    double level;   /* else: rate over weight that it can have at most */
};

struct flow_host {
    double rate;                     /* bytes/s of its link in each direction */
    double up, down;                 /* of it, what is left while links are shared */
    double up_weights, down_weights; /* of the flows that have no rate yet */
};

/* Bytes of a message on a connection. */
typedef double flow_bytes_fn(const void *user, const struct connection *c, uint32_t partition);

/* A message has left its host. */
typedef void flow_ended_fn(void *user, const struct connection *c, uint32_t partition);

struct flows {
    struct flow_host *hosts; /* borrowed, as `active` */
    size_t host_count;
    struct connection **active; /* those with messages; memory for all */
    size_t active_count;
    bool in_order;    /* else the last partition goes first */
    bool has_changed; /* which connections have messages, or their weights */
    flow_bytes_fn *bytes;
    flow_ended_fn *ended;
    void *user; /* of both */
};

void flows_send(struct flows *f, struct connection *c, uint32_t partition);

/* Time until the next message ends; DBL_MAX: there is none. */
double flows_next_s(struct flows *f);

/* Let so much time pass, at most flows_next_s; calls `ended`. */
void flows_advance(struct flows *f, double seconds);

#endif
