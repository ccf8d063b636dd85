/*
 * Records on their way out.  A record's payload is lent to gRPC where the shard will not overwrite
 * it before the ranks are answered, else copied; the copies are kept ready, one per rank.
 */
#include "common/base/clock.h"
#include "server/replication/replica_stream_internal.h"

#include <stdlib.h>
#include <string.h>

/* A copy for itself, where the one that is kept ready is not back yet. */
struct spare_copy {
    atomic_size_t *outstanding;
    float data[];
};

static void return_loan(void *user)
{
    struct replica_stream_loan *loan = user;
    atomic_size_t *outstanding = loan->outstanding;

    atomic_fetch_sub(&loan->held, 1);
    atomic_fetch_sub(outstanding, 1); /* the last touch: now the job may be freed */
}

static void free_copy(void *user)
{
    struct spare_copy *copy = user;
    atomic_size_t *outstanding = copy->outstanding;

    free(copy);
    atomic_fetch_sub(outstanding, 1);
}

/* A rank has one push of a partition under way at a time, so as many copies as there are ranks will
 * do, but for the moment between the replica's answer and core's letting go.  Lock held. */
static enum status copy_payload(struct replica_stream *c, size_t slot,
                                const struct mutation *record, struct rpc_payload *ret,
                                struct error *err)
{
    size_t index = record->sequence % c->world_size;
    struct replica_stream_loan *loan = &c->copied[slot * c->world_size + index];
    float *data = c->copy + index * c->shard->count + c->shard->parts[slot].offset;

    ret->user = loan;
    if (atomic_load(&loan->held) > 0) {
        struct spare_copy *spare = malloc(sizeof(*spare) + ret->size);

        if (!spare)
            return error_set(err, STATUS_NO_MEMORY, "cannot copy a record of %zu bytes", ret->size);
        spare->outstanding = c->outstanding;
        ret->user = spare;
        ret->release = free_copy;
        data = spare->data;
    } else {
        atomic_fetch_add(&loan->held, 1);
    }
    memcpy(data, record->payload, ret->size);
    ret->data = data;
    return STATUS_OK;
}

/* Lock held. */
static void pack(struct replica_stream *c, const struct mutation *record, size_t *ret_size)
{
    static const enum record_kind kinds[] = {[MUTATION_INIT] = RECORD_INIT,
                                             [MUTATION_STEP] = RECORD_STEP,
                                             [MUTATION_RANKS] = RECORD_RANKS,
                                             [MUTATION_STATE] = RECORD_STATE};
    struct wire_record m = {.kind = kinds[record->kind],
                            .partition = record->partition,
                            .sequence = record->sequence,
                            .step = record->step,
                            .rate = record->rate,
                            .epoch = c->epoch,
                            .clocks = c->clocks,
                            .clock_count = record->world_size,
                            .flags = c->flags,
                            .flag_count = record->world_size,
                            .length = record->count * sizeof(float)};

    memcpy(c->clocks, record->clocks, record->world_size * sizeof(*c->clocks));
    memcpy(c->flags, record->flags, record->world_size);
    *ret_size = wire_pack_record(&m, c->head);
}

/* Lock held. */
static enum status send_record(struct replica_stream *c, size_t slot, const struct mutation *record,
                               struct error *err)
{
    struct rpc_payload payload = {.data = record->payload,
                                  .size = record->count * sizeof(float),
                                  .release = return_loan,
                                  .user = &c->loans[slot]};
    enum status status = STATUS_OK;
    size_t head_size;

    if (c->copies && record->count > 0)
        status = copy_payload(c, slot, record, &payload, err);
    else
        atomic_fetch_add(&c->loans[slot].held, 1);
    if (status != STATUS_OK)
        return status;
    pack(c, record, &head_size);
    atomic_fetch_add(c->outstanding, 1);
    status = rpc_call_send(c->call, c->head, head_size, &payload);
    if (status == STATUS_NO_MEMORY) /* the replica would miss a record of a stream that goes on */
        return error_set(err, status, "cannot queue a record of %zu bytes", payload.size);
    if (status != STATUS_OK)
        return STATUS_OK; /* the stream is over, which is told there */
    c->sent_ns = clock_now_ns();
    c->counts.records++;
    c->counts.bytes += payload.size;
    return STATUS_OK;
}

enum status replica_stream_put(void *stream, const struct mutation *record, struct error *err)
{
    struct replica_stream *c = stream;
    size_t slot = replica_stream_slot_of(c, record->partition);
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&c->lock);
    c->slots[slot].put = record->sequence;
    if (!c->ended && c->succession.role != SUCCESSION_STANDALONE)
        status = send_record(c, slot, record, err);
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}
