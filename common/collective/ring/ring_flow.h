/*
 * ring_flow: one direction of one link during one operation: a header, then the operation's bytes.
 * The executors (ring_stream, ring_pairs, ring_doubling) process the bytes.
 * Threads: one caller at a time.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_FLOW_H
#define SPARRING_COMMON_COLLECTIVE_RING_FLOW_H

#include "common/collective/ring/ring_transport.h"
#include "common/collective/ring/ring_wire.h"
#include "common/tensor/reduce.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ring_outcome {
    RING_DONE,
    RING_PAUSED,  /* the given moment has come, or the alarm; run again to go on */
    RING_LOST,    /* the link to trouble.peer ended */
    RING_DIFFERS, /* trouble.header of trouble.peer is not what is expected here */
    RING_FAILED,  /* a system call failed; trouble.error_number */
};

/* Details of RING_LOST, RING_DIFFERS and RING_FAILED. */
struct ring_trouble {
    unsigned peer;
    int error_number;
    unsigned char header[RING_HEADER_BYTES];
};

/* What operations run on; lives as long as the group. */
struct ring_io {
    struct transport *transport; /* borrowed */
    const atomic_bool *alarm;    /* borrowed; NULL: none.  Raised, it ends waiting ... */
    int alarm_fd;                /* ... and so this is readable; -1: none */
    size_t segment_bytes;        /* at most so many bytes in one system call */
    uint64_t moved;              /* payload bytes sent and received, for report_progress, ... */
    uint64_t reported;           /* ... as of its last call */
    int64_t waited_ns;           /* blocked in ring_flow_wait */
    void (*report_progress)(void *argument, uint64_t moved); /* every REPORT_BYTES; NULL: none */
    void *progress_argument;
    struct ring_trouble trouble;
};

/* One operation on one rank, as the executors see it.  Buffers are borrowed and follow enum
 * collective_call's table. */
struct ring_operation {
    unsigned char header[RING_HEADER_BYTES]; /* that this rank sends */
    unsigned char expected[SIGNATURE_BYTES]; /* that its peers' headers must begin with */
    const unsigned char *input;
    unsigned char *output;
    struct reduction reduction; /* dtype and op */
    double factor;              /* of this rank's terms */
    bool has_factors;           /* terms are multiplied at all */
    int64_t divisor;            /* of the final result; 0: none */
};

struct ring_flow {
    unsigned peer;
    bool blocked; /* the last try moved nothing; wait before the next */
    size_t header_done;
    uint64_t done, total;                    /* payload bytes */
    double factor;                           /* received: of the peer's terms */
    unsigned char header[RING_HEADER_BYTES]; /* received */
};

bool ring_flow_is_done(const struct ring_flow *f);

/* Send the rest of the header and up to `bytes` bytes of data. */
enum ring_outcome ring_flow_send(struct ring_io *io, const struct ring_operation *operation,
                                 struct ring_flow *f, const void *data, size_t bytes, bool *moved);

/* Receive the rest of the header and up to `bytes` bytes into data; *ret_got says how many.  The
 * caller adds to f->done what it has processed. */
enum ring_outcome ring_flow_receive(struct ring_io *io, const struct ring_operation *operation,
                                    struct ring_flow *f, void *data, size_t bytes, size_t *ret_got,
                                    bool *moved);

/* Wait for the interests and unblock the flows that can move (flows[i] belongs to interests[i]):
 * RING_DONE when there is one, RING_PAUSED when until_ns passed meanwhile or the alarm came first.
 */
enum ring_outcome ring_flow_wait(struct ring_io *io, struct transport_interest *interests,
                                 struct ring_flow *const *flows, size_t count, int64_t until_ns);

/* Wait until what was sent is on its way, whatever becomes of this process. */
enum ring_outcome ring_flow_flush(struct ring_io *io, int64_t until_ns);

#endif
