/*
 * ring_stream: executes a ring plan: bytes go out to the right neighbour and come in from the left
 * one.  Sending, receiving and reducing are interleaved in one loop, so a segment is passed on
 * while the next one arrives and no buffer of a whole chunk is needed.  Partial results of float16
 * and bfloat16 are rounded at every hop.
 *
 * Independent of groups and time-outs: it runs until done, until a given moment or the alarm, or
 * until something is wrong.  Nothing is allocated while running.
 * Threads: one caller at a time.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_STREAM_H
#define SPARRING_COMMON_COLLECTIVE_RING_STREAM_H

#include "common/collective/ring/ring_flow.h"
#include "common/collective/ring/ring_plan.h"

/* Where bytes wait that are not in the caller's buffers; lives as long as the group. */
struct ring_scratch {
    unsigned char *arrival; /* arrival_bytes; owned: what will be reduced arrives here */
    size_t arrival_bytes;
    unsigned char *stage; /* stage_bytes, a multiple of 64; owned: see ring_plan.h */
    size_t stage_bytes;
};

enum status ring_scratch_init(struct ring_scratch *s, size_t segment_bytes, struct error *err);
void ring_scratch_release(struct ring_scratch *s);

struct ring_cursor {
    struct ring_range range; /* of the current step */
    size_t step;             /* of the next range */
    size_t offset;           /* bytes done in range */
};

/* One operation in progress. */
struct ring_run {
    struct ring_plan plan;
    struct ring_operation operation;
    struct ring_scratch *scratch; /* borrowed */
    size_t carried;               /* bytes of an incomplete element at the start of the arrivals */
    bool sends, receives;         /* has such a flow at all */
    struct ring_flow right, left;
    struct ring_cursor sent, received;
};

/* Copies the plan and the operation; moves nothing yet. */
void ring_run_init(struct ring_run *run, const struct ring_plan *plan,
                   const struct ring_operation *operation, struct ring_scratch *scratch);

enum ring_outcome ring_stream_run(struct ring_io *io, struct ring_run *run, int64_t until_ns);

#endif
