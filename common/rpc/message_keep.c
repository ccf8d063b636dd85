/*
 * message_keep: a received payload that outlives its handler.  The slices are referenced, not
 * copied; small ones are stored inside core's buffer, so the runs are rebuilt from the buffer's
 * copy.  No locks: one owner at a time.
 */
#include "common/rpc/message.h"

#include "common/base/memory.h"
#include "common/rpc/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdlib.h>

struct kept_message {
    struct rpc_message message; /* must be first: the caller's pointer */
    grpc_byte_buffer *buffer;   /* owned */
    struct byte_run runs[];
};

enum status rpc_message_keep(const struct rpc_message *message, struct rpc_message **ret_kept,
                             struct error *err)
{
    union {
        const void *constant;
        grpc_byte_buffer *plain; /* not const in core, but only reference counts change */
    } received = {.constant = message->received};
    grpc_byte_buffer *copy = grpc_byte_buffer_copy(received.plain);
    const grpc_slice_buffer *slices = &copy->data.raw.slice_buffer;
    struct kept_message *kept;
    enum status status = mem_calloc(1, sizeof(*kept) + slices->count * sizeof(kept->runs[0]),
                                    "kept message", &kept, err);

    if (status != STATUS_OK) {
        grpc_byte_buffer_destroy(copy);
        return status;
    }
    kept->buffer = copy;
    for (size_t i = 0; i < slices->count; i++)
        kept->runs[i] = (struct byte_run){GRPC_SLICE_START_PTR(slices->slices[i]),
                                          GRPC_SLICE_LENGTH(slices->slices[i])};
    kept->message.payload = message->payload;
    kept->message.payload.runs = kept->runs;
    kept->message.payload_size = message->payload_size;
    *ret_kept = &kept->message;
    return STATUS_OK;
}

void rpc_message_drop(struct rpc_message *kept)
{
    struct kept_message *k = (struct kept_message *)kept;

    if (!k)
        return;
    grpc_byte_buffer_destroy(k->buffer);
    free(k);
}
