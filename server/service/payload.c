/*
 * Payloads of pushes, initial values and replies.
 *
 * Elements go straight from the received slices into the accumulator, and from the shard's memory
 * to the wire, without a copy in between.  By reference the server reads them in the worker's
 * memory, and a reply carries only the offset in the shard's reply memory.  No state, no locks.
 */
#include "server/service/payload.h"

#include "common/base/memory.h"
#include "common/tensor/tensor.h"
#include "server/service/payload_codec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void drop_shared(void *user)
{
    worker_memory_unref(user);
}

/* It stays in its rank's memory, which the rank does not write before it gets the reply. */
static enum status keep_shared(void *user, struct shard_source *ret, struct error *err)
{
    const struct payload *p = user;

    (void)err;
    *ret = (struct shard_source){.drop = drop_shared,
                                 .user = worker_memory_ref(p->memory),
                                 .elements = p->elements,
                                 .factor = p->factor};
    return STATUS_OK;
}

static enum status payload_copy(void *user, float *dst, size_t count, struct error *err)
{
    struct payload *p = user;

    if (p->codec.kind != CODEC_NONE)
        return payload_decode(p->message, &p->codec, dst, count, false, err);
    if (p->factor != 1.0f)
        return rpc_message_scale_f32(p->message, p->factor, dst, count, err);
    return rpc_message_copy(p->message, dst, count * sizeof(float), err);
}

static enum status payload_add(void *user, float *dst, size_t count, struct error *err)
{
    struct payload *p = user;

    if (p->codec.kind != CODEC_NONE)
        return payload_decode(p->message, &p->codec, dst, count, true, err);
    if (p->factor != 1.0f)
        return rpc_message_add_scaled_f32(p->message, p->factor, dst, count, err);
    return rpc_message_add_f32(p->message, dst, count, err);
}

static enum status kept_message_copy(void *user, float *dst, size_t count, struct error *err)
{
    return rpc_message_copy(user, dst, count * sizeof(float), err);
}

static void kept_message_drop(void *user)
{
    rpc_message_drop(user);
}

static enum status payload_keep(void *user, struct shard_source *ret, struct error *err)
{
    struct payload *p = user;
    struct rpc_message *kept = NULL;
    enum status status;

    if (p->codec.kind != CODEC_NONE)
        return payload_keep_coded(p->message, &p->codec, ret, err);
    status = rpc_message_keep(p->message, &kept, err);
    if (status == STATUS_OK)
        *ret = (struct shard_source){
            .copy = kept_message_copy, .drop = kept_message_drop, .user = kept};
    return status;
}

/* Set the factor for CHUNK_UNDIVIDED; STATUS_PROTOCOL where the flag is not allowed.  Held
 * contributions are read without a factor: they exist only where each push is a step, and there the
 * divisor is 1. */
static enum status apply_undivided_flag(const struct shard *shard, const struct chunk_header *h,
                                        struct payload *ret, struct error *err)
{
    const struct shard_config *c = &shard->config;

    ret->factor = 1;
    if (!(h->flags & CHUNK_UNDIVIDED))
        return STATUS_OK;
    if (h->kind != CHUNK_PUSH || ret->codec.kind != CODEC_NONE)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " sent partition %" PRIu32
                         " undivided, which is only for gradients that are not compressed",
                         h->rank, h->partition);
    ret->factor = (float)(1.0 / consistency_divisor(&c->consistency, c->world_size));
    return STATUS_OK;
}

/* For a chunk without elements the flag only selects how the reply is sent. */
static enum status open_by_reference(const struct chunk_header *h, size_t bytes, size_t size,
                                     struct payload *ret, struct shard_source *ret_source,
                                     struct error *err)
{
    if (!ret->memory)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " refers to memory that it has not handed over", h->rank);
    ret->elements = worker_memory_at(ret->memory, h->offset, bytes / sizeof(float));
    if (size != 0 || h->length != bytes || !ret->elements)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " refers to %" PRIu64 " bytes at %" PRIu64
                         " of its memory of %zu for partition %" PRIu32 " of %zu",
                         h->rank, h->length, h->offset, ret->memory->memory.size, h->partition,
                         bytes);
    *ret_source = (struct shard_source){
        .keep = keep_shared, .user = ret, .elements = ret->elements, .factor = ret->factor};
    return STATUS_OK;
}

enum status payload_open(const struct shard *shard, const struct chunk_header *h,
                         struct rpc_message *message, struct payload *ret,
                         struct shard_source *ret_source, struct error *err)
{
    size_t size = message ? rpc_message_payload_size(message) : 0;
    size_t bytes;
    struct codec codec = payload_codec(&shard->config.compression.up, h,
                                       shard_partition_count(shard, h->partition), &bytes);
    enum status status;

    ret->message = message;
    ret->elements = NULL;
    ret->codec = codec;
    if (h->dtype != (uint32_t)codec.kind)
        return error_set(
            err, STATUS_PROTOCOL,
            "rank %" PRIu32 " sent partition %" PRIu32 " with dtype %" PRIu32 " (wanted: %u, %s)",
            h->rank, h->partition, h->dtype, (unsigned)codec.kind, codec_name(codec.kind));
    if (h->kind == CHUNK_PULL || h->kind == CHUNK_FINAL)
        bytes = 0;
    if ((h->flags & CHUNK_BY_REFERENCE) && codec.kind != CODEC_NONE)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " sent partition %" PRIu32
                         " by reference, which is only for elements as they are",
                         h->rank, h->partition);
    status = apply_undivided_flag(shard, h, ret, err);
    if (status != STATUS_OK)
        return status;
    if (h->flags & CHUNK_BY_REFERENCE)
        return open_by_reference(h, bytes, size, ret, ret_source, err);
    if (size != bytes || h->length != bytes)
        return error_set(err, STATUS_PROTOCOL,
                         "rank %" PRIu32 " sent %zu bytes for partition %" PRIu32
                         " of %zu (its header says %" PRIu64 ")",
                         h->rank, size, h->partition, bytes, h->length);
    *ret_source = (struct shard_source){
        .copy = payload_copy, .add = payload_add, .keep = payload_keep, .user = ret};
    return STATUS_OK;
}

void payload_make_reply(const struct shard *shard, const struct shard_reply *reply,
                        bool by_reference, struct chunk_header *header, struct rpc_payload *ret)
{
    header->dtype = CODEC_NONE;
    if (reply->coded) {
        header->dtype = (uint32_t)reply->codec.kind;
        ret->data = reply->coded;
        ret->size = reply->bytes;
        header->length = ret->size;
        return;
    }
    header->length = reply->count * sizeof(float);
    if (by_reference) {
        header->flags |= CHUNK_BY_REFERENCE;
        header->offset =
            (uint64_t)(reply->data - (const float *)shard->reply_memory.base) * sizeof(float);
        return;
    }
    ret->data = reply->data;
    ret->size = header->length;
}
