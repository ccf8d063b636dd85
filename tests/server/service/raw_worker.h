/*
 * raw_worker: a scripted worker over common/rpc, so that a test can send arbitrary chunks and check
 * every message and status that comes back.  Waits fail the test after 20 s.
 *
 * Threads: callbacks run on rpc's threads and fill a raw_call under its lock; the functions below
 * are for the test's threads, one per worker.
 */
#ifndef SPARRING_TESTS_SERVER_SERVICE_RAW_WORKER_H
#define SPARRING_TESTS_SERVER_SERVICE_RAW_WORKER_H

#include "common/rpc/rpc.h"
#include "common/wire/wire.h"

#include <pthread.h>
#include <stdbool.h>

#define RAW_CHUNKS_MAX 64
#define RAW_LANES_MAX  3

/* Everything received on one call so far. */
struct raw_call {
    struct rpc_call *call; /* one reference; NULL: not open */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct chunk_header chunks[RAW_CHUNKS_MAX];
    float first[RAW_CHUNKS_MAX]; /* first element of each payload, 0 without one */
    size_t length, taken;
    struct heartbeat heartbeat; /* the newest of an Attend call */
    size_t heartbeats;
    bool closed;
    struct rpc_result result;
    uint64_t connection; /* a join: from its reply */
};

struct raw_worker {
    unsigned rank;
    uint64_t session;    /* 0: none, and no HELLO */
    unsigned lanes;      /* 0: one */
    uint64_t connection; /* of the last join; 0: not sent in HELLO and heartbeats */
    struct rpc_client *client;
    struct raw_call join, stream, attend;           /* stream: lane 0 */
    struct raw_call other_lanes[RAW_LANES_MAX - 1]; /* lanes from 1 on */
};

void raw_open(struct raw_worker *w, uint16_t port, unsigned rank);
void raw_open_with(struct raw_worker *w, uint16_t port, unsigned rank,
                   const struct rpc_security *security);
void raw_close(struct raw_worker *w);

/* Join terms that tests start from: 2 ranks, one server, 2 full partitions of 4 KiB and one of 100
 * elements, the mean gradient comes back, sums in rank order. */
#define RAW_COUNT      (2u * 1024 + 100)
#define RAW_PARTITIONS 3u
struct join_request raw_terms(unsigned rank);

/* Start a join; raw_end_join waits for its end and returns it. */
void raw_begin_join(struct raw_worker *w, const struct join_request *request);
struct rpc_result raw_end_join(struct raw_worker *w);

/* Open the stream of lane 0; or of all lanes.  With a session each starts with HELLO. */
void raw_start_stream(struct raw_worker *w);
void raw_start_lanes(struct raw_worker *w);

/* Send any chunk on any call; the second function starts one. */
void raw_send_on(struct raw_call *c, const struct chunk_header *header, size_t bytes, float value);
void raw_start_call(struct raw_worker *w, struct raw_call *c, const char *path);

/* The Attend call: start it, send a heartbeat, and wait until that many replies have come (returns
 * the newest). */
void raw_start_attend(struct raw_worker *w);
void raw_send_heartbeat(struct raw_worker *w, const char *job, uint64_t count);
struct heartbeat raw_wait_heartbeats(struct raw_worker *w, size_t heartbeats);

/* Cancel all streams and the Attend call, and wait until they are closed. */
void raw_disconnect(struct raw_worker *w);

/* Send a chunk with `bytes` of payload, all of them floats of that value. */
void raw_send(struct raw_worker *w, const struct chunk_header *header, size_t bytes, float value);

/* A valid chunk of a partition of raw_terms, with its length filled in; send it with CHUNK_AGAIN,
 * or without. */
struct chunk_header raw_chunk(const struct raw_worker *w, enum chunk_kind kind, uint32_t partition,
                              uint64_t round);
void raw_send_again(struct raw_worker *w, enum chunk_kind kind, uint32_t partition, uint64_t round,
                    float value);
void raw_send_valid(struct raw_worker *w, enum chunk_kind kind, uint32_t partition, uint64_t round,
                    float value);

/* The next chunk received, in order: on lane 0, or on any call. */
struct chunk_header raw_take(struct raw_worker *w, float *ret_first);
struct chunk_header raw_take_from(struct raw_call *c, float *ret_first);

struct rpc_result raw_wait_closed(struct raw_call *c);

/* Open streams; rank 0 sends `value` for all partitions, and all ranks read it. */
void raw_initialise(struct raw_worker *workers, unsigned count, float value);

struct rpc_result raw_leave(struct raw_worker *w, const char *job, const char *reason);

#endif
