/*
 * wire_internal: declarations shared by the sources of wire.
 */
#ifndef SPARRING_COMMON_WIRE_WIRE_INTERNAL_H
#define SPARRING_COMMON_WIRE_WIRE_INTERNAL_H

#include "common/protobuf/unpack.h"
#include "common/wire/wire.h"

/* Measure, allocate (*ret_bytes: free), pack; STATUS_INVALID above `limit` bytes. */
enum status wire_pack(const ProtobufCMessage *message, size_t limit, uint8_t **ret_bytes,
                      size_t *ret_size, struct error *err);

/* unpack_message; *ret_message is a pointer to the generated struct. */
enum status wire_unpack(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                        size_t size, size_t limit, struct arena *arena, void *ret_message,
                        struct error *err);

/* STATUS_INVALID when the peer would refuse the text. */
enum status wire_check_text(const char *text, const char *what, struct error *err);

/* `text` into a buffer of `size` bytes; STATUS_DATA when it does not fit. */
enum status wire_copy_text(const char *text, const char *what, char *buffer, size_t size,
                           struct error *err);

/* protobuf-c requires a non-NULL pointer; NULL becomes "". */
char *wire_text_or_empty(char *text);

#endif
