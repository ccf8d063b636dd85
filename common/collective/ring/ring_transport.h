/*
 * ring_transport: what carries bytes between the ranks of a group, under the algorithms of
 * ring_stream, ring_pairs and ring_doubling, which are independent of it.
 *
 * Between every two ranks there is one link, a stream of bytes in each direction, in order and
 * without loss.  Nothing blocks but `wait`.  Bytes that `send` took are copied: their memory is
 * the caller's again at once.
 * Threads: one caller at a time.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_TRANSPORT_H
#define SPARRING_COMMON_COLLECTIVE_RING_TRANSPORT_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct collective;

/* What send and receive return instead of a number of bytes. */
#define TRANSPORT_ENDED  (-1) /* the link is gone: end of stream, reset */
#define TRANSPORT_FAILED (-2) /* something else; errno */

struct transport_interest {
    unsigned peer;
    bool send, receive;         /* wait until the link can do it ... */
    size_t expected;            /* received bytes for which waiting cannot deadlock: a transport may
                                   wake only when so many are there */
    bool can_send, can_receive; /* ... out: it can, or it has ended */
};

/* The head of every transport's struct. */
struct transport {
    const struct transport_ops *ops;
};

struct transport_ops {
    const char *name;

    /* Connect every rank of the group to every other (addresses go through collective_exchange);
     * blocks until deadline_ns.  Errors name the rank that is missing. */
    enum status (*open)(struct collective *group, int64_t deadline_ns, struct transport **ret,
                        struct error *err);

    /* Take some of the bytes of `parts`, at most all: the number, 0 when none can go now. */
    ssize_t (*send)(struct transport *t, unsigned peer, const struct iovec *parts, int count);

    /* Put some bytes into `parts`: the number, 0 when none are there. */
    ssize_t (*receive)(struct transport *t, unsigned peer, const struct iovec *parts, int count);

    /* Block until one of the interests is ready, alarm_fd (-1: none) is readable or until_ns has
     * passed.  May wake early.  False: a system call failed; errno. */
    bool (*wait)(struct transport *t, struct transport_interest *interests, size_t count,
                 int alarm_fd, int64_t until_ns);

    /* Has the kernel taken all that was sent, so that it arrives even when this process dies?  If
     * not, `wait` wakes when it has.  NULL: always. */
    bool (*is_flushed)(struct transport *t);

    /* Bytes to that peer, on another host, that its kernel has not acknowledged; 0: on this one.
     * NULL: unknown. */
    uint64_t (*queued)(struct transport *t, unsigned peer);

    /* Bytes of a link to a neighbour go side by side over `count` connections from here on, or over
     * all that there are; on all ranks between the same two operations.  Returns the most that
     * would change anything, the same on all ranks.  NULL: there is one. */
    unsigned (*use_streams)(struct transport *t, unsigned count);

    /* Close the connections that use_streams left idle.  NULL: there are none. */
    void (*settle_streams)(struct transport *t);

    /* What was sent is still delivered when `in_order`; else the links just end.  NULL allowed. */
    void (*close)(struct transport *t, bool in_order);
};

extern const struct transport_ops transport_tcp_ops;
extern const struct transport_ops transport_grpc_ops;

#endif
