/*
 * unpack: protobuf-c messages from bytes that nobody vouches for.  Internal to rpc.
 *
 * protobuf-c allocates up to 44 times the bytes it reads, ends strings at an embedded NUL and takes
 * invalid UTF-8.  So every string is checked on the wire bytes first, and memory comes from an
 * arena with a budget that follows from the size of the input; the whole message is freed at once.
 */
#ifndef SPARRING_COMMON_PROTOBUF_UNPACK_H
#define SPARRING_COMMON_PROTOBUF_UNPACK_H

#include "common/base/error.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena_block;

struct arena {
    ProtobufCAllocator allocator; /* points at this arena: do not move it */
    size_t budget;                /* bytes that may still be allocated */
    bool exhausted;               /* an allocation was refused */
    struct arena_block *blocks;   /* owned, beyond `first` */
    uint8_t *at;                  /* free bytes of the newest block */
    size_t left;
    _Alignas(max_align_t) uint8_t first[1024]; /* a chunk header needs no more */
};

void arena_release(struct arena *arena);

/*
 * Unpack `size` bytes (at most max_size) as a message of `descriptor` into *ret, which lives in the
 * arena: initialised here, released by the caller whatever the result.
 * STATUS_DATA names the message, and the field where a string is not valid UTF-8 without NUL.
 */
enum status unpack_message(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                           size_t size, size_t max_size, struct arena *arena,
                           ProtobufCMessage **ret, struct error *err);

/* True for valid UTF-8 without NUL (RFC 3629: no overlong forms, no surrogates). */
bool text_is_valid(const uint8_t *text, size_t size);

/* Length of the longest valid beginning, as text_is_valid sees it. */
size_t text_valid_length(const uint8_t *text, size_t size);

#endif
