#include "worker/sync/ps_payload.h"

#include "worker/sync/ps.h"
#include "worker/sync/ps_arena.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

float *ps_answer_slab(const struct sync_ps *s, uint64_t round)
{
    return round == 0 || s->base.yields == SYNC_YIELDS_PARAMETERS ? s->params : s->grads;
}

void ps_payload_release(void *user)
{
    (void)atomic_fetch_sub((atomic_size_t *)user, 1);
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
    if (header->flags & CHUNK_BY_REFERENCE) { /* nothing is compressed then */
        header->dtype = CODEC_NONE;
        header->length = p->count * sizeof(float);
        header->offset = ps_arena_place(s, slab + p->offset);
        *ret = (struct rpc_payload){0};
        return STATUS_OK;
    }
    *ret = (struct rpc_payload){.data = slab + p->offset,
                                .size = p->count * sizeof(float),
                                .release = ps_payload_release,
                                .user = &s->outstanding};
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
    (void)atomic_fetch_add(&s->outstanding, 1);
    return STATUS_OK;
}

/* May answers come as they are?  Values may: initial and final ones do, and what takes the place of
 * a change. */
static bool may_be_whole(const struct sync_ps *s)
{
    return s->round == 0 || s->base.yields == SYNC_YIELDS_PARAMETERS ||
           s->codec.compression.down.kind == CODEC_NONE ||
           codec_has_residual(&s->codec.compression.down) ||
           codec_has_variable_size(&s->codec.compression.down);
}

/* Changes are for whoever has what has changed. */
static bool may_be_coded(const struct sync_ps *s)
{
    return s->round > 0 || (s->catching_up && s->codec.mode == CODEC_REPLACE);
}

enum status ps_payload_check(const struct sync_ps *s, const struct chunk_header *header,
                             size_t payload_bytes, struct error *err)
{
    static const struct codec plain = {.kind = CODEC_NONE};
    const struct partition *p = &s->map.partitions[header->partition];
    const struct codec *down = &s->codec.compression.down;
    bool is_plain = !may_be_coded(s) || (header->dtype == CODEC_NONE && may_be_whole(s));
    const struct codec *codec = is_plain ? &plain : down;
    bool shorter = codec_has_variable_size(codec) && header->length < p->count * sizeof(float);
    const struct ps_named *named = ps_names_of(&s->names, header->partition);
    size_t wanted = codec->kind == CODEC_SELECTED_ROWS ? named ? named->bytes : 0
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
    if (by_reference && !ps_arena_at(&s->links[p->server], header->offset, wanted))
        return error_set(err, STATUS_PROTOCOL,
                         "it answers partition %" PRIu32 " from byte %" PRIu64
                         " of its memory, which has %zu here",
                         header->partition, header->offset, s->links[p->server].arena.size);
    return STATUS_OK;
}

/* Is what is to be added in that round here already?  Who takes the place of a lost rank has pulled
 * values that may be a round further, and then makes that round. */
static bool has_change(struct sync_ps *s, const struct chunk_header *header)
{
    bool has;

    if (s->codec.mode != CODEC_ADD || !consistency_is_lockstep(&s->consistency))
        return false;
    (void)pthread_mutex_lock(&s->lock);
    has = s->partitions[header->partition].of >= header->round;
    (void)pthread_mutex_unlock(&s->lock);
    return has;
}

enum status ps_payload_take(struct sync_ps *s, const struct chunk_header *header,
                            struct rpc_message *message, struct error *err)
{
    const struct partition *p = &s->map.partitions[header->partition];
    float *dst = ps_answer_slab(s, header->round) + p->offset;

    if (header->dtype != CODEC_NONE && has_change(s, header))
        return STATUS_OK;
    if (header->dtype != CODEC_NONE)
        return ps_codec_decode(&s->codec, message, dst, p, err);
    if (!(header->flags & CHUNK_BY_REFERENCE))
        return rpc_message_copy(message, dst, p->count * sizeof(float), err);
    memcpy(dst, ps_arena_at(&s->links[p->server], header->offset, header->length), header->length);
    return STATUS_OK;
}
