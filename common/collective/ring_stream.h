/*
 * ring_stream: executes a ring plan over two connected, non-blocking stream sockets: tensor bytes
 * go out to the right and come in from the left, small notes travel the other way.
 *
 * Sending, receiving and adding are interleaved in one loop, so a segment is passed on while the
 * next one arrives and no buffer of a whole chunk is needed.  Knows nothing of ranks' names,
 * stores or time-outs: it runs until done, until a given moment, or until a neighbour is gone, and
 * ring.c decides what that means.  Nothing is allocated while running.
 * Threads: one caller at a time.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_RING_STREAM_H
#define SPARRING_COMMON_COLLECTIVE_RING_STREAM_H

#include "common/collective/ring_plan.h"
#include "common/collective/ring_wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The two connections of one rank. */
struct ring_stream {
    int right_fd;           /* we send the stream, we receive notes; owned */
    int left_fd;            /* we receive the stream, we send notes; owned */
    unsigned char *scratch; /* segment_bytes; owned: where bytes that will be added arrive */
    size_t segment_bytes;
    unsigned char note[RING_NOTE_BYTES]; /* from the right, incomplete */
    size_t note_bytes;
    bool right_closed;        /* the right neighbour said goodbye */
    uint64_t alive_sequence;  /* newest operation in which the right neighbour said it waits */
    uint64_t blamed_sequence; /* newest operation for which a rank was blamed, 0 for none ... */
    uint32_t blamed_rank;     /* ... and that rank */
};

struct ring_cursor {
    struct ring_range range; /* of the current step */
    enum ring_action action; /* receive */
    unsigned step;           /* of the next range */
    size_t offset;           /* bytes done in range */
    uint64_t done;           /* bytes done of the whole stream */
};

/* One operation in progress. */
struct ring_run {
    const struct ring_plan *plan; /* borrowed */
    unsigned char *buffer;        /* borrowed: what the plan's ranges index */
    unsigned char header[RING_HEADER_BYTES];
    unsigned char left_header[RING_HEADER_BYTES];
    size_t header_sent;
    size_t header_received;
    size_t carried; /* bytes of an incomplete float32 at the start of the scratch */
    struct ring_cursor sent;
    struct ring_cursor received;
};

enum ring_outcome {
    RING_DONE,
    RING_PAUSED,    /* the given moment has come; run again to go on */
    RING_LEFT_LOST, /* end of stream or reset */
    RING_RIGHT_LOST,
    RING_LEFT_DIFFERS, /* run.left_header is not ours */
    RING_RIGHT_CLOSED, /* the right neighbour left in order, and we still had bytes for it */
    RING_FAILED,       /* a system call failed; errno */
};

/* Allocate the scratch; the sockets come later. */
enum status ring_stream_init(struct ring_stream *s, struct error *err);
void ring_stream_release(struct ring_stream *s);

/* `header` is copied. */
void ring_run_init(struct ring_run *run, const struct ring_plan *plan, void *buffer,
                   const unsigned char *header);

enum ring_outcome ring_stream_run(struct ring_stream *s, struct ring_run *run, int64_t until_ns);

/* Send a note to the left; dropped when the connection does not take it at once. */
void ring_stream_note(const struct ring_stream *s, const struct ring_note *note);

/* Tell both neighbours that this rank leaves in order: `header` to the right, `goodbye` to the
 * left. Does not wait; release closes the connections. */
void ring_stream_leave(const struct ring_stream *s, const unsigned char *header,
                       const struct ring_note *goodbye);

#endif
