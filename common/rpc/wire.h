/*
 * wire: the messages of proto/ as plain C structs, packed and unpacked here so that nobody else
 * sees protobuf-c.  Unpacking treats every byte as hostile: sizes are capped before any allocation,
 * strings are checked (length, no NUL inside, printable ASCII or valid UTF-8), enums are
 * range-checked.
 */
#ifndef SPARRING_COMMON_RPC_WIRE_H
#define SPARRING_COMMON_RPC_WIRE_H

#include "common/base/error.h"
#include "common/consistency/consistency.h"
#include "common/optimizer/optimizer.h"

#include <stddef.h>
#include <stdint.h>

#define WIRE_CHUNK_HEAD_MAX 64         /* packed bytes of a chunk header */
#define WIRE_CONTROL_MAX    (1u << 20) /* packed bytes of any control message */
#define WIRE_STORE_MAX      (34u << 20) /* packed bytes of a store message: two values and their key */
#define WIRE_JOB_MAX        128

enum chunk_kind {
    CHUNK_PUSH = 1,   /* worker -> server: a gradient partition of `round` */
    CHUNK_INIT = 2,   /* worker (rank 0) -> server: initial values */
    CHUNK_PULL = 3,   /* worker -> server: asks for values, no payload */
    CHUNK_VALUES = 4, /* server -> worker: parameters */
    CHUNK_MEAN = 5,   /* server -> worker: the mean gradient */
    CHUNK_FINAL = 6,  /* worker -> server: pushes no more, asks for the values that are left when
                         all ranks have said so; not where all are in step anyway */
};

struct chunk_header {
    enum chunk_kind kind;
    uint32_t rank;
    uint64_t round;
    uint32_t partition;
    uint32_t dtype;
    uint64_t length; /* payload bytes */
};

/* Pack into head (WIRE_CHUNK_HEAD_MAX bytes); returns the packed size.  The payload's tag and
 * length are added by rpc_call_send. */
size_t wire_pack_chunk(const struct chunk_header *chunk, uint8_t *head);
enum status wire_unpack_chunk(const uint8_t *head, size_t size, struct chunk_header *ret,
                              struct error *err);

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
};

struct join_reply {
    uint32_t partition_count;
    uint32_t *partitions; /* owned after unpack: free; borrowed while packing */
    size_t held;          /* length of partitions */
    uint64_t element_count;
    char version[32];
};

struct leave_request {
    char job[WIRE_JOB_MAX];
    uint32_t rank;
    char reason[1024];
};

struct store_request {
    char *key; /* the pointers are owned after unpack (store_request_release), borrowed while
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
void wire_release_join_request(struct join_request *m);
void wire_release_join_reply(struct join_reply *m);
void wire_release_store_request(struct store_request *m);
void wire_release_store_reply(struct store_reply *m);

#endif
