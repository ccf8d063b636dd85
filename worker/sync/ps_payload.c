/*
 * Payloads of pushes and replies: float32 from the slab, compressed (ps_codec), or by reference
 * into shared memory (ps_worker_memory), where nothing is compressed.
 *
 * gRPC sends directly from the slab or the coded copy; unreleased_payloads counts what it still
 * references.  A received partition is checked under the lock and stored without it.
 */
#include "worker/sync/ps_payload.h"

#include "worker/sync/ps.h"
#include "worker/sync/ps_worker_memory.h"

#include <inttypes.h>
#include <string.h>

float *ps_reply_slab(const struct sync_ps *s, uint64_t round)
{
    return round == 0 || s->base.yields == SYNC_YIELDS_PARAMETERS ? s->params : s->grads;
}

void ps_payload_release(void *user)
{
    in_flight_end(user);
}

static bool is_compressed(const struct sync_ps *s, const struct chunk_header *header)
{
    return header->kind == CHUNK_PUSH && s->codec.compression.up.kind != CODEC_NONE;
}

enum status ps_payload_make(struct sync_ps *s, const float *slab, struct chunk_header *header,
                            struct rpc_payload *ret, struct error *err)
{
    const struct partition *p = &s->map.partitions[header->partition];
    const uint8_t *coded = NULL;
    size_t coded_bytes = 0;
    enum status status = STATUS_OK;

    if (header->kind == CHUNK_PUSH && s->undivided)
        header->flags |= CHUNK_UNDIVIDED;
    if (header->flags & CHUNK_BY_REFERENCE) { /* excludes compression */
        header->dtype = CODEC_NONE;
        header->length = p->count * sizeof(float);
        header->offset = ps_worker_memory_offset(s, slab + p->offset);
        *ret = (struct rpc_payload){0};
        return STATUS_OK;
    }
    *ret = (struct rpc_payload){.data = slab + p->offset,
                                .size = p->count * sizeof(float),
                                .release = ps_payload_release,
                                .user = &s->unreleased_payloads};
    header->dtype = CODEC_NONE;
    if (is_compressed(s, header))
        status = ps_codec_encode(&s->codec, header->partition, header->round, slab + p->offset, p,
                                 &coded, &coded_bytes, err);
    if (status != STATUS_OK)
        return error_prefix(err, "rank %u, partition %" PRIu32 ", round %" PRIu64 ": ", s->rank,
                            header->partition, header->round);
    if (coded) {
        ret->data = coded;
        ret->size = coded_bytes;
        header->dtype = (uint32_t)s->codec.compression.up.kind;
    }
    header->length = ret->size;
    in_flight_begin(&s->unreleased_payloads);
    return STATUS_OK;
}

/* May a reply be uncompressed?  Values may: initial and final ones are, and values may replace a
 * delta. */
static bool may_be_uncompressed(const struct sync_ps *s)
{
    return s->round == 0 || s->base.yields == SYNC_YIELDS_PARAMETERS ||
           s->codec.compression.down.kind == CODEC_NONE ||
           codec_has_residual(&s->codec.compression.down) ||
           codec_has_variable_size(&s->codec.compression.down);
}

/* A delta requires the values that it is relative to. */
static bool may_be_compressed(const struct sync_ps *s)
{
    return s->round > 0 || (s->catching_up && s->codec.mode == CODEC_REPLACE);
}

enum status ps_payload_check(const struct sync_ps *s, const struct chunk_header *header,
                             size_t payload_bytes, struct error *err)
{
    static const struct codec plain = {.kind = CODEC_NONE};
    const struct partition *p = &s->map.partitions[header->partition];
    const struct codec *down = &s->codec.compression.down;
    bool is_plain =
        !may_be_compressed(s) || (header->dtype == CODEC_NONE && may_be_uncompressed(s));
    const struct codec *codec = is_plain ? &plain : down;
    bool shorter = codec_has_variable_size(codec) && header->length < p->count * sizeof(float);
    const struct ps_selected_rows *selected = ps_row_selection_of(&s->selection, header->partition);
    size_t wanted = codec->kind == CODEC_SELECTED_ROWS ? selected ? selected->reply_bytes : 0
                    : shorter                          ? header->length
                                                       : codec_bytes(codec, p->count);
    bool by_reference = header->flags & CHUNK_BY_REFERENCE;

    if (header->dtype != (uint32_t)codec->kind)
        return error_set(err, STATUS_PROTOCOL,
                         "it sent partition %" PRIu32 " with dtype %" PRIu32 " (wanted: %u, %s)",
                         header->partition, header->dtype, (unsigned)codec->kind,
                         codec_name(codec->kind));
    if (header->length != wanted || payload_bytes != (by_reference ? 0 : wanted))
        return error_set(err, STATUS_PROTOCOL,
                         "it sent %zu bytes for partition %" PRIu32 " of %zu (its header says "
                         "%" PRIu64 ")",
                         payload_bytes, header->partition, wanted, header->length);
    if (by_reference && !ps_server_memory_resolve(&s->links[p->server], header->offset, wanted))
        return error_set(err, STATUS_PROTOCOL,
                         "it answers partition %" PRIu32 " from byte %" PRIu64
                         " of its memory, which has %zu here",
                         header->partition, header->offset, s->links[p->server].server_memory.size);
    return STATUS_OK;
}

/* Does the slab contain the delta of that round already?  A replacement may have pulled values that
 * are one round ahead, and then repeats that round. */
static bool is_already_applied(struct sync_ps *s, const struct chunk_header *header)
{
    bool has;

    if (s->codec.mode != CODEC_ADD || !consistency_is_lockstep(&s->consistency))
        return false;
    (void)pthread_mutex_lock(&s->lock);
    has = s->partitions[header->partition].values_round >= header->round;
    (void)pthread_mutex_unlock(&s->lock);
    return has;
}

enum status ps_payload_store(struct sync_ps *s, const struct chunk_header *header,
                             struct rpc_message *message, struct error *err)
{
    const struct partition *p = &s->map.partitions[header->partition];
    float *dst = ps_reply_slab(s, header->round) + p->offset;

    if (header->dtype != CODEC_NONE && is_already_applied(s, header))
        return STATUS_OK;
    if (header->dtype != CODEC_NONE)
        return ps_codec_decode(&s->codec, message, dst, p, err);
    if (!(header->flags & CHUNK_BY_REFERENCE))
        return rpc_message_copy(message, dst, p->count * sizeof(float), err);
    memcpy(dst, ps_server_memory_resolve(&s->links[p->server], header->offset, header->length),
           header->length);
    return STATUS_OK;
}
