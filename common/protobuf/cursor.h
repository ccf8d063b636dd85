/*
 * cursor: walk the fields of a protobuf message that lies in several runs of bytes.
 *
 * Runs are what a transport delivers: any size (also 0), any alignment, and varints and fields
 * straddle them.  Every length is checked against the bytes that are there before it is used.
 * Wire format: protobuf.dev/programming-guides/encoding.
 */
#ifndef SPARRING_COMMON_PROTOBUF_CURSOR_H
#define SPARRING_COMMON_PROTOBUF_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rpc_run {
    const uint8_t *data; /* borrowed */
    size_t size;
};

struct cursor {
    const struct rpc_run *runs; /* borrowed */
    size_t run;                 /* the run that the next byte lies in, or one before it */
    size_t offset;              /* of the next byte in that run */
    size_t left;                /* bytes left in all runs */
};

enum field_type { FIELD_VARINT = 0, FIELD_FIXED64 = 1, FIELD_BYTES = 2, FIELD_FIXED32 = 5 };

struct field {
    uint32_t number;
    enum field_type type;
    size_t size; /* of the value: behind the length for FIELD_BYTES, 0 for FIELD_VARINT */
};

void cursor_init(struct cursor *c, const struct rpc_run *runs, size_t count);

/* The next contiguous piece, at most `limit` bytes, and step over it; NULL at the end. */
const uint8_t *cursor_take(struct cursor *c, size_t limit, size_t *ret_size);

/* Step over `size` bytes; false when fewer are left. */
bool cursor_skip(struct cursor *c, size_t size);

/*
 * The next field's tag and length, the cursor then stands at its value (behind it for a varint).
 * False when it is malformed: cut, a field number outside 1 to 2^29-1, a group, a value longer than
 * the bytes left.  Do not call it with nothing left.
 */
bool cursor_field(struct cursor *c, struct field *ret);

#endif
