/*
 * wire: the messages of proto/ as plain C structs, packed and unpacked here so that nobody else
 * sees protobuf-c.  Unpacking treats every byte as hostile: sizes are capped before any allocation,
 * strings are checked (length, no NUL inside, printable ASCII or valid UTF-8), enums are
 * range-checked.
 */
#ifndef SPARRING_COMMON_WIRE_WIRE_H
#define SPARRING_COMMON_WIRE_WIRE_H

#include "common/base/error.h"
#include "common/codec/codec.h"
#include "common/consistency/consistency.h"
#include "common/optimizer/optimizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_CHUNK_HEAD_MAX 88         /* packed bytes of a chunk header */
#define WIRE_BEAT_MAX       512        /* packed bytes of a beat */
#define WIRE_RECORD_MAX     24576      /* packed bytes of a record without terms and payload */
#define WIRE_REPLY_MAX      64         /* packed bytes of the answer to a record */
#define WIRE_RANKS_MAX      1024u      /* clocks, flags and sessions in a record */
#define WIRE_CONTROL_MAX    (1u << 20) /* packed bytes of any control message */
#define WIRE_STORE_MAX      (34u << 20) /* packed bytes of a store message: two values and their key */
#define WIRE_JOB_MAX        128
#define WIRE_ADDRESS_MAX    320 /* an endpoint as text */
#define WIRE_ARENA_MAX      128
#define WIRE_WEIGHTS_MAX    4096u
#define WIRE_LANES_MAX      16u
#define WIRE_STEPS_MAX      ((uint64_t)1 << 53)

/* A server's words for the end of a job whose rank is lost, and the rank in such a text. */
#define WIRE_RANK_LOST "rank %u was lost ("
bool wire_find_lost_rank(const char *text, unsigned *ret_rank);

enum chunk_kind {
    CHUNK_PUSH = 1,   /* worker -> server: a gradient partition of `round` */
    CHUNK_INIT = 2,   /* worker (rank 0) -> server: initial values */
    CHUNK_PULL = 3,   /* worker -> server: asks for values, no payload */
    CHUNK_VALUES = 4, /* server -> worker: parameters */
    CHUNK_MEAN = 5,   /* server -> worker: the mean gradient */
    CHUNK_FINAL = 6,  /* worker -> server: pushes no more, asks for the values that are left when
                         all ranks have said so; not where all are in step anyway */
    CHUNK_HELLO = 7,  /* worker -> server: whose stream and which lane this is; its first chunk */
    CHUNK_NAMES = 8,  /* worker -> server, before a PUSH or PULL of the partition: the rows that its
                         answer is to hold (common/codec/codec_names.h) */
    CHUNK_STATE = 9,  /* state of the optimizer, or a question for it; see the proto file */
};

/* Flags of a chunk. */
#define CHUNK_AGAIN 1u /* it may have been sent before, on a stream that was cut off */
#define CHUNK_BY_REFERENCE                                                                         \
    2u /* no payload: it lies in the sender's arena, `length` bytes at `place` */
#define CHUNK_UNDIVIDED                                                                            \
    4u /* PUSH: the server divides the gradient by the contributions that a round takes            \
          (consistency_divisor) as it reads it; else the worker has done so */
#define CHUNK_FLAGS 7u /* all there are */

/* What becomes of a job that has lost a rank. */
enum worker_loss { WORKER_LOSS_FAIL, WORKER_LOSS_SHRINK, WORKER_LOSS_WAIT, WORKER_LOSS_COUNT };

enum server_role { SERVER_PRIMARY, SERVER_REPLICA, SERVER_ROLE_COUNT };

struct chunk_header {
    enum chunk_kind kind;
    uint32_t rank;
    uint64_t round;
    uint32_t partition;
    uint32_t dtype;
    uint64_t length; /* payload bytes */
    uint32_t flags;
    uint64_t session;    /* HELLO; STATE, the question */
    uint32_t lane;       /* HELLO; STATE: 0 values, 1 and 2 states */
    uint64_t place;      /* BY_REFERENCE: bytes from the start of the sender's arena */
    uint64_t connection; /* HELLO: of the join's reply; 0: not said */
};

/* Pack into head (WIRE_CHUNK_HEAD_MAX bytes); returns the packed size.  The payload's tag and
 * length are added by rpc_call_send. */
size_t wire_pack_chunk(const struct chunk_header *chunk, uint8_t *head);
enum status wire_unpack_chunk(const uint8_t *head, size_t size, struct chunk_header *ret,
                              struct error *err);

/* Both ways on an Attend stream; see proto/parameter_server.proto for who says what. */
struct beat {
    uint64_t session;
    uint32_t rank;
    char job[WIRE_JOB_MAX];
    uint64_t count, epoch, propose_epoch, vote_epoch;
    uint32_t waiting_ms;
    char reason[256];
    uint64_t connection; /* as in HELLO */
    uint32_t lane;
};

/* The same for a beat (WIRE_BEAT_MAX bytes). */
size_t wire_pack_beat(const struct beat *beat, uint8_t *bytes);
enum status wire_unpack_beat(const uint8_t *bytes, size_t size, struct beat *ret,
                             struct error *err);

/* What a primary tells its replica. */
enum record_kind {
    RECORD_TERMS = 1,  /* first on a stream: the job's terms, its epoch, its sessions */
    RECORD_INIT = 2,   /* a partition's initial values */
    RECORD_STEP = 3,   /* a partition's step, or whole sum; see struct shard_record */
    RECORD_RANKS = 4,  /* of a partition: a rank finished, went or came */
    RECORD_MEMBER = 5, /* the sessions that hold the slots from this epoch on; numbered, too */
    RECORD_BEAT = 6,   /* nothing happened, I am alive */
    RECORD_END = 7,    /* the job is over */
    RECORD_ASK = 8,    /* alone on a stream, with terms: does the replica serve by now? */
    RECORD_STATE = 9,  /* initial state `step` of a partition's optimizer */
};

struct join_request;

/* Clocks, flags and sessions are the caller's memory, also for unpacking: there the counts are what
 * fits on entry, and what there was on return.  The payload travels as a
 * chunk's does. */
struct wire_record {
    enum record_kind kind;
    uint32_t partition;
    uint64_t sequence; /* of the partition's records, from 1; 0: of no partition */
    uint64_t step;
    double rate;
    uint64_t epoch;
    uint64_t *clocks;
    size_t clock_count;
    uint8_t *flags;
    size_t flag_count;
    uint64_t *sessions; /* 0: the slot is vacant */
    size_t session_count;
    uint64_t length; /* payload bytes */
    /* TERMS and ASK only: borrowed while packing; owned after unpack (wire_release_record). */
    struct join_request *terms;
};

#define RECORD_OF_MEMBERS UINT32_MAX /* as the partition of a reply */

struct record_reply {
    uint32_t partition;
    uint64_t sequence; /* as in the record, which is applied */
    uint64_t epoch;
    int superseded;          /* refused: the replica serves by now, in that epoch */
    uint64_t records, bytes; /* of partitions, taken on this stream by now; of their payloads */
};

struct join_request {
    char job[WIRE_JOB_MAX];
    uint32_t rank, world_size, server_index, server_count;
    char *manifest; /* owned after unpack: free; borrowed while packing */
    uint64_t element_count, partition_bytes;
    uint32_t update; /* 0 server, 1 worker */
    uint32_t order;  /* 0 arrival, 1 rank order */
    struct optimizer_config optimizer;
    struct consistency consistency; /* its mode is in range, nothing else is checked */
    struct exact_staleness *rules;  /* owned after unpack (wire_release_join_request), borrowed
                                       while packing; at most CONSISTENCY_RULES_MAX */
    size_t rule_count;
    uint64_t session; /* 0: does not come back when it is cut off */
    uint32_t lanes;   /* at most WIRE_LANES_MAX; 0: one */
    int in_order;     /* answers leave as they are ready, else the highest partition first */
    int resume;
    int follows;      /* at a replica: only if others have made it the primary */
    uint64_t round;   /* resume: the last one that this worker has completed */
    uint64_t attempt; /* which of the session's joins it is, from 1; 0: not said */
    uint32_t on_loss; /* enum worker_loss, in range */
    uint32_t reconnect_ms, heartbeat_ms, heartbeat_timeout_ms;
    char replica[WIRE_ADDRESS_MAX]; /* "": none */
    uint32_t dtype_up, dtype_down;  /* enum codec_kind, in range */
    uint32_t top_k_ppm;
    uint32_t *weights; /* as rules; at most WIRE_WEIGHTS_MAX, none: equal */
    size_t weight_count;
    char arena[WIRE_ARENA_MAX];
    uint64_t steps_before; /* optimizer steps of the run that it goes on with; at most
                              WIRE_STEPS_MAX */
};

struct join_reply {
    uint32_t partition_count;
    uint32_t *partitions; /* owned after unpack: free; borrowed while packing */
    size_t held;          /* length of partitions */
    uint64_t element_count;
    char version[32];
    uint64_t epoch, round;
    uint32_t role; /* enum server_role, in range */
    char arena[WIRE_ARENA_MAX];
    uint64_t connection; /* that begins with it; to be told in HELLO and beats */
};

struct leave_request {
    char job[WIRE_JOB_MAX];
    uint32_t rank;
    uint64_t session; /* of its join */
    char reason[1024];
};

struct store_request {
    char *key; /* the pointers are owned after unpack (wire_release_store_request), borrowed while
                  packing */
    uint8_t *value;
    size_t value_size;
    uint8_t *expected;
    size_t expected_size;
    int64_t delta;
    char **keys;
    size_t key_count;
    int64_t timeout_ms;
};

struct store_reply {
    uint8_t *value;
    size_t value_size;
    int64_t number;
    int found;
    char **missing;
    size_t missing_count;
};

/* Each pack allocates *ret_bytes (free); each unpack fills a zeroed struct.  Of a join request that
 * was refused nothing is left to release. */
enum status wire_pack_join_request(const struct join_request *m, uint8_t **ret_bytes,
                                   size_t *ret_size, struct error *err);
enum status wire_unpack_join_request(const uint8_t *bytes, size_t size, struct join_request *ret,
                                     struct error *err);
enum status wire_pack_join_reply(const struct join_reply *m, uint8_t **ret_bytes, size_t *ret_size,
                                 struct error *err);
enum status wire_unpack_join_reply(const uint8_t *bytes, size_t size, struct join_reply *ret,
                                   struct error *err);
enum status wire_pack_leave_request(const struct leave_request *m, uint8_t **ret_bytes,
                                    size_t *ret_size, struct error *err);
enum status wire_unpack_leave_request(const uint8_t *bytes, size_t size, struct leave_request *ret,
                                      struct error *err);
enum status wire_pack_store_request(const struct store_request *m, uint8_t **ret_bytes,
                                    size_t *ret_size, struct error *err);
enum status wire_unpack_store_request(const uint8_t *bytes, size_t size, struct store_request *ret,
                                      struct error *err);
enum status wire_pack_store_reply(const struct store_reply *m, uint8_t **ret_bytes,
                                  size_t *ret_size, struct error *err);
enum status wire_unpack_store_reply(const uint8_t *bytes, size_t size, struct store_reply *ret,
                                    struct error *err);
/* A record with terms, allocated like the others; and one without, into head (WIRE_RECORD_MAX
 * bytes): the packed size. */
enum status wire_pack_terms(const struct wire_record *m, uint8_t **ret_bytes, size_t *ret_size,
                            struct error *err);
size_t wire_pack_record(const struct wire_record *m, uint8_t *head);
enum status wire_unpack_record(const uint8_t *bytes, size_t size, struct wire_record *ret,
                               struct error *err);
void wire_release_record(struct wire_record *m);
size_t wire_pack_record_reply(const struct record_reply *m, uint8_t *bytes);
enum status wire_unpack_record_reply(const uint8_t *bytes, size_t size, struct record_reply *ret,
                                     struct error *err);
void wire_release_join_request(struct join_request *m);
void wire_release_join_reply(struct join_reply *m);
void wire_release_store_request(struct store_request *m);
void wire_release_store_reply(struct store_reply *m);

#endif
