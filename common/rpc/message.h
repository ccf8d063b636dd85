/*
 * message: a received message as runs of bytes, split into header and payload.  Internal to rpc,
 * its tests and its fuzzer; independent of gRPC.
 */
#ifndef SPARRING_COMMON_RPC_MESSAGE_H
#define SPARRING_COMMON_RPC_MESSAGE_H

#include "common/base/error.h"
#include "common/protobuf/cursor.h"

#include <stddef.h>
#include <stdint.h>

#define RPC_PAYLOAD_FIELD  15          /* the largest field number with a tag of one byte */
#define RPC_HEAD_MAX       (34u << 20) /* bytes of every field before the payload: WIRE_STORE_MAX */
#define RPC_PAYLOAD_PREFIX 11          /* tag and longest varint before a payload */
#define RPC_HEAD_INLINE    256

struct rpc_message {
    const void *received;  /* core's buffer that contains the runs, borrowed; NULL: none */
    struct cursor payload; /* at the payload's first byte */
    size_t payload_size;
    const uint8_t *head; /* small or large */
    size_t head_size;
    uint8_t small[RPC_HEAD_INLINE];
    uint8_t *large; /* owned; kept from message to message */
    size_t large_capacity;
    size_t max_head_bytes, max_payload_bytes; /* as in rpc_method; set before the first parse */
};

/* Split the bytes of `runs` (borrowed until the last use of the message).  `message` is zeroed or
 * was parsed before.  STATUS_DATA: malformed, a header above RPC_HEAD_MAX, a header or payload
 * above the message's own limits, or a payload field that is not the last one; STATUS_NO_MEMORY. */
enum status rpc_message_parse(struct rpc_message *message, const struct byte_run *runs,
                              size_t count, struct error *err);

void rpc_message_release(struct rpc_message *message);

/* Write tag and length of a payload of `size` bytes into prefix (RPC_PAYLOAD_PREFIX bytes). Returns
 * the bytes used, 0 for an empty payload, which is omitted like every proto3 default value. */
size_t rpc_payload_prefix(size_t size, uint8_t *prefix);

#endif
