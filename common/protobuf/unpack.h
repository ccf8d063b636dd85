/*
 * unpack: unpacks protobuf-c messages from untrusted bytes.
 *
 * protobuf-c allocates up to 44 times the bytes it reads, ends strings at an embedded NUL and
 * accepts invalid UTF-8.  So every string is checked on the wire bytes first, and memory comes from
 * an arena whose budget is proportional to the size of the input; the whole message is freed at
 * once.
 *
 * Library common/protobuf: bounded decoding of protobuf messages.  Needs base and protobuf-c.
 * Called by rpc and wire.
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
    uint8_t *at;                  /* first free byte of the newest block */
    size_t left;
    _Alignas(max_align_t) uint8_t first[1024]; /* a chunk header needs no more */
};

void arena_release(struct arena *arena);

/*
 * Unpack `size` bytes (at most max_size) as a message of `descriptor` into *ret, which is in the
 * arena.  The arena is initialised here and released by the caller, also on failure.
 * STATUS_DATA names the message, and the field where a string is not valid UTF-8 without NUL.
 */
enum status unpack_message(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                           size_t size, size_t max_size, struct arena *arena,
                           ProtobufCMessage **ret, struct error *err);

/* True for valid UTF-8 without NUL (RFC 3629: no overlong forms, no surrogates). */
bool text_is_valid(const uint8_t *text, size_t size);

/* Length of the longest prefix that text_is_valid accepts. */
size_t text_valid_length(const uint8_t *text, size_t size);

#endif
