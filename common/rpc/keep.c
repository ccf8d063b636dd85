/*
 * keep: a received payload that outlives its handler.  The slices are referenced, not copied; small
 * ones lie inside core's buffer, which is why the runs are made anew from the copy of it.
 */
#include "common/rpc/message.h"

#include "common/base/memory.h"
#include "common/rpc/rpc.h"

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <stdlib.h>

struct kept {
    struct rpc_message message; /* first: what the caller holds */
    grpc_byte_buffer *buffer;   /* owned */
    struct rpc_run runs[];
};

enum status rpc_message_keep(const struct rpc_message *message, struct rpc_message **ret_kept,
                             struct error *err)
{
    union {
        const void *constant;
        grpc_byte_buffer *plain; /* core takes no const, and changes only reference counts */
    } received = {.constant = message->received};
    grpc_byte_buffer *copy = grpc_byte_buffer_copy(received.plain);
    const grpc_slice_buffer *slices = &copy->data.raw.slice_buffer;
    struct kept *k;
    enum status status =
        mem_calloc(1, sizeof(*k) + slices->count * sizeof(k->runs[0]), "kept message", &k, err);

    if (status != STATUS_OK) {
        grpc_byte_buffer_destroy(copy);
        return status;
    }
    k->buffer = copy;
    for (size_t i = 0; i < slices->count; i++)
        k->runs[i] = (struct rpc_run){GRPC_SLICE_START_PTR(slices->slices[i]),
                                      GRPC_SLICE_LENGTH(slices->slices[i])};
    k->message.payload = message->payload;
    k->message.payload.runs = k->runs;
    k->message.payload_size = message->payload_size;
    *ret_kept = &k->message;
    return STATUS_OK;
}

void rpc_message_drop(struct rpc_message *kept)
{
    struct kept *k = (struct kept *)kept;

    if (!k)
        return;
    grpc_byte_buffer_destroy(k->buffer);
    free(k);
}
