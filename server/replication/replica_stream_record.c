/*
 * Sending of records.  gRPC reads the payload from the shard's memory where the shard does not
 * overwrite it before the ranks are replied to; else it is copied, into memory allocated in advance
 * (one copy of the shard per rank).
 *
 * replica_stream_append runs under the partition's lock and takes the stream's.
 */
#include "common/base/clock.h"
#include "server/replication/replica_stream_internal.h"

#include <stdlib.h>
#include <string.h>

/* A copy of its own, where gRPC still reads the one allocated in advance. */
struct spare_copy {
    atomic_size_t *outstanding;
    float data[];
};

static void release_buffer(void *user)
{
    struct replica_stream_buffer *buffer = user;
    atomic_size_t *outstanding = buffer->outstanding;

    atomic_fetch_sub(&buffer->in_flight, 1);
    atomic_fetch_sub(outstanding, 1); /* last access: the job may be freed now */
}

static void free_spare_copy(void *user)
{
    struct spare_copy *copy = user;
    atomic_size_t *outstanding = copy->outstanding;

    free(copy);
    atomic_fetch_sub(outstanding, 1);
}

/* A rank has at most one push of a partition in flight, so one copy per rank is enough, except
 * between the replica's acknowledgement and the release by gRPC.  Lock held. */
static enum status copy_payload(struct replica_stream *s, size_t local_index,
                                const struct mutation *record, struct rpc_payload *ret,
                                struct error *err)
{
    size_t index = record->sequence % s->world_size;
    struct replica_stream_buffer *buffer = &s->copy_buffers[local_index * s->world_size + index];
    float *data = s->copy_data + index * s->shard->count + s->shard->parts[local_index].offset;

    ret->user = buffer;
    if (atomic_load(&buffer->in_flight) > 0) {
        struct spare_copy *spare = malloc(sizeof(*spare) + ret->size);

        if (!spare)
            return error_set(err, STATUS_NO_MEMORY, "cannot copy a record of %zu bytes", ret->size);
        spare->outstanding = s->outstanding;
        ret->user = spare;
        ret->release = free_spare_copy;
        data = spare->data;
    } else {
        atomic_fetch_add(&buffer->in_flight, 1);
    }
    memcpy(data, record->payload, ret->size);
    ret->data = data;
    return STATUS_OK;
}

/* Lock held. */
static void pack_mutation(struct replica_stream *s, const struct mutation *record, size_t *ret_size)
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
                            .epoch = s->epoch,
                            .clocks = s->clocks,
                            .clock_count = record->world_size,
                            .flags = s->flags,
                            .flag_count = record->world_size,
                            .length = record->count * sizeof(float)};

    memcpy(s->clocks, record->clocks, record->world_size * sizeof(*s->clocks));
    memcpy(s->flags, record->flags, record->world_size);
    *ret_size = wire_pack_record(&m, s->head);
}

/* Lock held. */
static enum status send_record(struct replica_stream *s, size_t local_index,
                               const struct mutation *record, struct error *err)
{
    struct rpc_payload payload = {.data = record->payload,
                                  .size = record->count * sizeof(float),
                                  .release = release_buffer,
                                  .user = &s->buffers[local_index]};
    enum status status = STATUS_OK;
    size_t head_size;

    if (s->copies_payloads && record->count > 0)
        status = copy_payload(s, local_index, record, &payload, err);
    else
        atomic_fetch_add(&s->buffers[local_index].in_flight, 1);
    if (status != STATUS_OK)
        return status;
    pack_mutation(s, record, &head_size);
    atomic_fetch_add(s->outstanding, 1);
    status = rpc_call_send(s->call, s->head, head_size, &payload);
    if (status == STATUS_NO_MEMORY) /* the replica would miss one record of a live stream */
        return error_set(err, status, "cannot queue a record of %zu bytes", payload.size);
    if (status != STATUS_OK)
        return STATUS_OK; /* the stream has ended: on_stream_closed handles it */
    s->sent_ns = clock_now_ns();
    s->counts.records++;
    s->counts.bytes += payload.size;
    return STATUS_OK;
}

enum status replica_stream_append(void *stream, const struct mutation *record, struct error *err)
{
    struct replica_stream *s = stream;
    size_t local_index = replica_stream_local_index(s, record->partition);
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&s->lock);
    s->parts[local_index].newest = record->sequence;
    if (!s->stream_ended && s->succession.role != SUCCESSION_STANDALONE)
        status = send_record(s, local_index, record, err);
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}
