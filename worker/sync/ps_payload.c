#include "worker/sync/ps_payload.h"

#include "worker/sync/ps.h"

#include <inttypes.h>
#include <stdatomic.h>

float *ps_answer_slab(const struct sync_ps *s, uint64_t round)
{
    return round == 0 || s->base.yields == SYNC_YIELDS_PARAMETERS ? s->params : s->grads;
}

static void release_payload(void *user)
{
    (void)atomic_fetch_sub((atomic_size_t *)user, 1);
}

void ps_payload_make(struct sync_ps *s, const float *slab, bool repeated,
                     struct chunk_header *header, struct rpc_payload *ret)
{
    const struct partition *p = &s->map.partitions[header->partition];

    (void)repeated; /* float32 is as it was */
    header->dtype = CODING_FLOAT32;
    header->length = p->count * sizeof(float);
    *ret = (struct rpc_payload){.data = slab + p->offset,
                                .size = header->length,
                                .release = release_payload,
                                .user = &s->outstanding};
    (void)atomic_fetch_add(&s->outstanding, 1);
}

enum status ps_payload_check(const struct sync_ps *s, const struct chunk_header *header,
                             size_t payload_bytes, struct error *err)
{
    const struct partition *p = &s->map.partitions[header->partition];

    if (header->dtype != CODING_FLOAT32)
        return error_set(err, STATUS_PROTOCOL, "it sent partition %" PRIu32 " with dtype %" PRIu32,
                         header->partition, header->dtype);
    if (payload_bytes != p->count * sizeof(float) || header->length != payload_bytes)
        return error_set(err, STATUS_PROTOCOL, "it sent %zu bytes for partition %" PRIu32 " of %zu",
                         payload_bytes, header->partition, p->count * sizeof(float));
    return STATUS_OK;
}

enum status ps_payload_take(struct sync_ps *s, const struct chunk_header *header,
                            struct rpc_message *message, struct error *err)
{
    const struct partition *p = &s->map.partitions[header->partition];

    return rpc_message_copy(message, ps_answer_slab(s, header->round) + p->offset,
                            p->count * sizeof(float), err);
}
