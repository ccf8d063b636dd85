/*
 * cursor: iterates the fields of a protobuf message that is spread over several runs of bytes.
 *
 * Runs come from a transport: any size (also 0), any alignment, and varints and fields may span
 * them.  Every length is checked against the remaining bytes before it is used.
 * Wire format: protobuf.dev/programming-guides/encoding.
 */
#ifndef SPARRING_COMMON_PROTOBUF_CURSOR_H
#define SPARRING_COMMON_PROTOBUF_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct byte_run {
    const uint8_t *data; /* borrowed */
    size_t size;
};

struct cursor {
    const struct byte_run *runs; /* borrowed */
    size_t run;                  /* the run of the next byte, or an earlier one */
    size_t offset;               /* of the next byte in that run */
    size_t left;                 /* bytes left in all runs */
};

enum field_type { FIELD_VARINT = 0, FIELD_FIXED64 = 1, FIELD_BYTES = 2, FIELD_FIXED32 = 5 };

struct field {
    uint32_t number;
    enum field_type type;
    size_t size; /* of the value: after the length for FIELD_BYTES, 0 for FIELD_VARINT */
};

void cursor_init(struct cursor *c, const struct byte_run *runs, size_t count);

/* Return the next contiguous piece, at most `limit` bytes, and step over it; NULL at the end. */
const uint8_t *cursor_take(struct cursor *c, size_t limit, size_t *ret_size);

/* Step over `size` bytes; false when fewer are left. */
bool cursor_skip(struct cursor *c, size_t size);

/*
 * Read the next field's tag and length; the cursor is then at its value (after it for a varint).
 * False when it is malformed: truncated, a field number outside 1 to 2^29-1, a group, a value
 * longer than the remaining bytes.  Requires at least one remaining byte.
 */
bool cursor_field(struct cursor *c, struct field *ret);

#endif
