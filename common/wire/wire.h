/*
 * wire: the messages of proto/ as plain C structs; packing and unpacking are here, so that no other
 * library uses protobuf-c structs.  Unpacking treats every byte as hostile: sizes are capped before
 * any allocation, strings are checked (length, no NUL inside, printable ASCII or valid UTF-8),
 * enums are range-checked.
 *
 * Library.  Needs rpc (call counts), protobuf, codec, consistency, optimizer
 * and base.  Called by the store, the parameter server, its workers and the tools that read
 * statistics.
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

#define WIRE_CHUNK_HEAD_MAX     88          /* packed bytes of a chunk header */
#define WIRE_HEARTBEAT_MAX      512         /* packed bytes of a heartbeat */
#define WIRE_RECORD_MAX         24576       /* packed bytes of a record without terms and payload */
#define WIRE_REPLY_MAX          64          /* packed bytes of the reply to a record */
#define WIRE_RANKS_MAX          1024u       /* clocks, flags and sessions in a record */
#define WIRE_CONTROL_MAX        (1u << 20)  /* packed bytes of any control message */
#define WIRE_STORE_MAX          (34u << 20) /* packed bytes of a store message: two values, a key */
#define WIRE_JOB_MAX            128
#define WIRE_ADDRESS_MAX        320 /* an endpoint as text */
#define WIRE_MEMORY_ADDRESS_MAX 128
#define WIRE_WEIGHTS_MAX        4096u
#define WIRE_LANES_MAX          16u
#define WIRE_STEPS_MAX          ((uint64_t)1 << 53)

/* The server's text when a job ends because a rank was lost, and the parser for the rank in it. */
#define WIRE_RANK_LOST "rank %u was lost ("
bool wire_find_lost_rank(const char *text, unsigned *ret_rank);

enum chunk_kind {
    CHUNK_PUSH = 1,   /* worker -> server: a gradient partition of `round` */
    CHUNK_INIT = 2,   /* worker (rank 0) -> server: initial values */
    CHUNK_PULL = 3,   /* worker -> server: requests values, no payload */
    CHUNK_VALUES = 4, /* server -> worker: parameters */
    CHUNK_MEAN = 5,   /* server -> worker: the mean gradient */
    CHUNK_FINAL = 6,  /* worker -> server: no more pushes; requests the values once all ranks have
                         sent FINAL; unused when all ranks are in step */
    CHUNK_HELLO = 7,  /* worker -> server: first chunk, identifies the stream's rank and lane */
    CHUNK_ROW_SELECTION = 8, /* worker -> server, before a PUSH or PULL of the partition: the rows
                                that its reply contains (common/codec/codec_row_selection.h) */
    CHUNK_STATE = 9,         /* state of the optimizer, or a request for it; see the proto file */
};

/* Flags of a chunk. */
#define CHUNK_AGAIN 1u /* a possible repetition of a chunk sent on a broken stream */
#define CHUNK_BY_REFERENCE                                                                         \
    2u /* no payload: it is in the sender's shared memory, `length` bytes at `offset` */
#define CHUNK_UNDIVIDED                                                                            \
    4u                 /* PUSH: the server divides the gradient by the round's contributions       \
                          (consistency_divisor) as it reads it; otherwise the worker has done so */
#define CHUNK_FLAGS 7u /* all flags */

/* What a job does when it has lost a rank. */
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
    uint64_t session;    /* HELLO; STATE, the request */
    uint32_t lane;       /* HELLO; STATE: 0 values, 1 and 2 states */
    uint64_t offset;     /* BY_REFERENCE: bytes from the start of the sender's shared memory */
    uint64_t connection; /* HELLO: of the join's reply; 0: not set */
};

/* Pack into head (WIRE_CHUNK_HEAD_MAX bytes); returns the packed size.  The payload's tag and
 * length are added by rpc_call_send. */
size_t wire_pack_chunk(const struct chunk_header *chunk, uint8_t *head);
enum status wire_unpack_chunk(const uint8_t *head, size_t size, struct chunk_header *ret,
                              struct error *err);

/* Both ways on an Attend stream; proto/parameter_server.proto defines each direction's fields. */
struct heartbeat {
    uint64_t session;
    uint32_t rank;
    char job[WIRE_JOB_MAX];
    uint64_t count, epoch, propose_epoch, vote_epoch;
    uint32_t waiting_ms;
    char reason[256];
    uint64_t connection; /* as in HELLO */
    uint32_t lane;
};

/* The same for a heartbeat (WIRE_HEARTBEAT_MAX bytes). */
size_t wire_pack_heartbeat(const struct heartbeat *heartbeat, uint8_t *bytes);
enum status wire_unpack_heartbeat(const uint8_t *bytes, size_t size, struct heartbeat *ret,
                                  struct error *err);

/* Records that a primary sends to its replica. */
enum record_kind {
    RECORD_TERMS = 1,  /* first on a stream: the job's terms, its epoch, its sessions */
    RECORD_INIT = 2,   /* a partition's initial values */
    RECORD_STEP = 3,   /* a partition's step, or whole sum: a shard's mutation */
    RECORD_RANKS = 4,  /* of a partition: a rank finished, left or joined */
    RECORD_MEMBER = 5, /* the sessions of all ranks from this epoch on; has a sequence number too */
    RECORD_HEARTBEAT = 6, /* no event: proves that the primary is alive */
    RECORD_END = 7,       /* the job has ended; step: its status without the sign, 0: in order */
    RECORD_TAKEOVER_QUERY = 8, /* the only record of its stream, with terms: has the replica taken
                                  over? */
    RECORD_STATE = 9,          /* initial state `step` of a partition's optimizer */
};

struct join_request;

/* Clocks, flags and sessions are the caller's memory, also for unpacking: the counts are then the
 * capacity on entry, and the number of elements on return.  The payload is sent like a chunk's. */
struct wire_record {
    enum record_kind kind;
    uint32_t partition;
    uint64_t sequence; /* of the partition's records, from 1; 0: not of a partition */
    uint64_t step;
    double rate;
    uint64_t epoch;
    uint64_t *clocks;
    size_t clock_count;
    uint8_t *flags;
    size_t flag_count;
    uint64_t *sessions; /* by rank; 0: vacant */
    size_t session_count;
    uint64_t length; /* payload bytes */
    /* TERMS and TAKEOVER_QUERY only: borrowed while packing; owned after unpack
     * (wire_release_record). */
    struct join_request *terms;
};

#define RECORD_MEMBERSHIP_PARTITION UINT32_MAX /* as the partition of a reply */

struct record_reply {
    uint32_t partition;
    uint64_t sequence; /* of the record, which has been applied */
    uint64_t epoch;
    int superseded;          /* refused: the replica has taken over, in that epoch */
    uint64_t records, bytes; /* partition records applied on this stream so far; payload bytes */
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
    uint64_t session; /* 0: does not reconnect after a disconnection */
    uint32_t lanes;   /* at most WIRE_LANES_MAX; 0: one */
    int in_order;     /* replies are sent when ready; otherwise the highest partition first */
    int resume;
    int follows;      /* at a replica: join only if it has already become the primary */
    uint64_t round;   /* resume: the last one that this worker has completed */
    uint64_t attempt; /* number of this join in the session, from 1; 0: not set */
    uint32_t on_loss; /* enum worker_loss, in range */
    uint32_t reconnect_ms, heartbeat_ms, heartbeat_timeout_ms;
    char replica[WIRE_ADDRESS_MAX]; /* "": none */
    uint32_t dtype_up, dtype_down;  /* enum codec_kind, in range */
    uint32_t top_k_ppm;
    uint32_t *weights; /* as rules; at most WIRE_WEIGHTS_MAX, none: equal */
    size_t weight_count;
    char host_id[WIRE_MEMORY_ADDRESS_MAX]; /* "": the slabs are not in shared memory */
    uint64_t steps_before;                 /* optimizer steps before this run, when resumed; at most
                                              WIRE_STEPS_MAX */
};

struct join_reply {
    uint32_t partition_count;
    uint32_t *partitions; /* owned after unpack: free; borrowed while packing */
    size_t held;          /* length of partitions */
    uint64_t element_count;
    char version[32];
    uint64_t epoch, round;
    uint32_t role;                                /* enum server_role, in range */
    char memory_address[WIRE_MEMORY_ADDRESS_MAX]; /* of the server's memory (common/base/handover);
                                                     "": none is shared */
    uint64_t connection;                          /* the new connection's number; sent in HELLO and
                                                     heartbeats */
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

/* Each pack allocates *ret_bytes (free); each unpack fills a zeroed struct.  A join request that
 * failed to unpack needs no release. */
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
/* Pack a record with terms (allocated like the others), and one without into head (WIRE_RECORD_MAX
 * bytes; returns the packed size). */
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
