/*
 * flows: messages on connections whose hosts share their links, as a fluid.  Between two changes
 * all rates are constant: weighted max-min fair, and none above its connection's limit.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_FLOWS_H
#define SPARRING_EXPERIMENTS_PREDICT_FLOWS_H

#include "common/base/send_limit.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FLOWS_RATE_MAX 1e15 /* bytes/s, where nothing limits */

/* One direction between a rank and a server. */
struct connection {
    unsigned rank, server;
    bool is_reply;
    unsigned from, to;       /* hosts */
    double weight, limit;    /* bytes/s; they change only while it has no messages */
    struct send_limit ahead; /* of partitions + 1, where it is not in order */
    /* of flows.c, but for the memory: */
    double rate, left_bytes; /* of its first message */
    double rounding_bytes;   /* with no more left it has ended */
    double level;            /* of its limit: that over its weight */
    uint32_t *messages;      /* partitions; borrowed, a ring of `capacity` */
    size_t first, length, capacity;
    size_t taken;   /* of length; on their way or next, in this order; 0: the others must wait */
    bool is_shared; /* its rate is set */
    struct connection *next_up, *next_down; /* on the same link */
};

/* One direction of a host's link, while it is shared. */
struct flow_link {
    double left;              /* bytes/s */
    double weights;           /* of the flows that have no rate yet */
    size_t count;             /* of those */
    double level;             /* left over weights */
    struct connection *flows; /* all */
};

struct flow_host {
    double rate;               /* bytes/s of its link in each direction */
    struct flow_link up, down; /* of flows.c */
};

/* Bytes of a message on a connection. */
typedef double flow_bytes_fn(const void *user, const struct connection *c, uint32_t partition);

/* A message has left its host. */
typedef void flow_ended_fn(void *user, const struct connection *c, uint32_t partition);

struct flows {
    struct flow_host *hosts; /* borrowed, as `active` and `unfilled` */
    size_t host_count;
    struct connection **active; /* those with taken messages, by `level`; memory for all */
    size_t active_count;
    struct flow_link **unfilled; /* memory for two of each host */
    size_t unfilled_count;
    bool in_order;    /* else the last partition goes first */
    bool has_changed; /* which connections are active */
    double passed_s;  /* since left_bytes was true */
    double first_s;   /* from then to the first message that has ended but for rounding, */
    double next_s;    /* or wholly */
    flow_bytes_fn *bytes;
    flow_ended_fn *ended;
    void *user; /* of both */
};

void flows_send(struct flows *f, struct connection *c, uint32_t partition);

/* The reply to a partition's message on the connection has come. */
void flows_replied(struct flows *f, struct connection *c, uint32_t partition);

/* Time until the next message ends; DBL_MAX: there is none. */
double flows_next_s(struct flows *f);

/* Let so much time pass, at most flows_next_s; calls `ended`. */
void flows_advance(struct flows *f, double seconds);

#endif
