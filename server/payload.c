/*
 * Straight from the received slices into the accumulator, and from the shard's memory to the wire:
 * nothing is copied in between.
 */
#include "server/payload.h"

#include <inttypes.h>

static enum status payload_copy(void *user, float *dst, size_t count, struct error *err)
{
    struct payload *p = user;

    return rpc_message_copy(p->message, dst, count * sizeof(float), err);
}

static enum status payload_add(void *user, float *dst, size_t count, struct error *err)
{
    struct payload *p = user;

    return rpc_message_add_f32(p->message, dst, count, err);
}

static enum status kept_copy(void *user, float *dst, size_t count, struct error *err)
{
    return rpc_message_copy(user, dst, count * sizeof(float), err);
}

static void kept_drop(void *user)
{
    rpc_message_drop(user);
}

static enum status payload_keep(void *user, struct shard_source *ret, struct error *err)
{
    struct payload *p = user;
    struct rpc_message *kept = NULL;
    enum status status = rpc_message_keep(p->message, &kept, err);

    if (status == STATUS_OK)
        *ret = (struct shard_source){.copy = kept_copy, .drop = kept_drop, .user = kept};
    return status;
}

enum status payload_open(const struct shard *shard, const struct chunk_header *h,
                         struct rpc_message *message, struct payload *ret,
                         struct shard_source *ret_source, struct error *err)
{
    size_t size = rpc_message_payload_size(message);
    size_t bytes = shard_partition_count(shard, h->partition) * sizeof(float);

    if (h->dtype != CODING_FLOAT32)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " sent partition %" PRIu32 " with dtype %" PRIu32
                         " (only 0, float32, is known)",
                         h->rank, h->partition, h->dtype);
    if (h->kind == CHUNK_PULL || h->kind == CHUNK_FINAL)
        bytes = 0;
    if (size != bytes || h->length != bytes)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " sent %zu bytes for partition %" PRIu32
                         " of %zu (its header says %" PRIu64 ")",
                         h->rank, size, h->partition, bytes, h->length);
    *ret = (struct payload){.message = message};
    *ret_source = (struct shard_source){
        .copy = payload_copy, .add = payload_add, .keep = payload_keep, .user = ret};
    return STATUS_OK;
}

void payload_make(const struct shard_answer *answer, struct chunk_header *header,
                  struct rpc_payload *ret)
{
    header->dtype = CODING_FLOAT32;
    header->length = answer->count * sizeof(float);
    ret->data = answer->data;
    ret->size = header->length;
}
