/*
 * The State call: a rank asks for one partition as a whole, values and the state of the optimizer
 * of one moment, for a checkpoint.  It is copied under the partition's lock, and sent from the
 * copies, which core frees.
 */
#include "common/base/memory.h"
#include "server/tie.h"

#include <inttypes.h>
#include <stdlib.h>

#define SLABS_MAX 3 /* values and two states */

/* The job that the question is about, with one use of it.  *ret is untouched on failure. */
static enum status take_job(struct service *s, const struct rpc_call *call,
                            const struct chunk_header *h, struct job **ret, struct error *err)
{
    const struct tie_claim claim = {
        .rank = h->rank, .session = h->session, .what = "asked for a state"};
    enum status status = service_check_rank(s, call, h->rank, err);

    if (status == STATUS_OK && (h->kind != CHUNK_STATE || h->session == 0))
        status = error_set(err, STATUS_PROTOCOL,
                           "rank %" PRIu32 " asked for a state by a chunk of kind %d%s", h->rank,
                           (int)h->kind, h->session == 0 ? " without a session" : "");
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->lock);
    status = tie_check(s, &claim, err);
    if (status == STATUS_OK) {
        s->current->users++;
        *ret = s->current;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return status;
}

static void send_slab(struct rpc_call *call, struct chunk_header *header, float *data, size_t count)
{
    const struct rpc_payload payload = {
        .data = data, .size = count * sizeof(float), .release = free, .user = data};
    uint8_t head[WIRE_CHUNK_HEAD_MAX];

    header->length = payload.size;
    (void)rpc_call_send(call, head, wire_pack_chunk(header, head), &payload);
}

static enum status answer(struct rpc_call *call, struct job *j, const struct chunk_header *question,
                          struct error *err)
{
    size_t count = shard_partition_count(&j->shard, question->partition);
    unsigned slabs = 1 + j->shard.optimizer.states;
    struct chunk_header header = {
        .kind = CHUNK_STATE, .rank = question->rank, .partition = question->partition};
    float *data[SLABS_MAX] = {NULL};
    enum status status = STATUS_OK;

    for (unsigned i = 0; status == STATUS_OK && i < slabs; i++)
        status = mem_calloc(count, sizeof(float), "copy of a partition", &data[i], err);
    if (status == STATUS_OK)
        status =
            shard_read_state(&j->shard, question->partition, data[0], &data[1], &header.round, err);
    for (unsigned i = 0; i < slabs; i++) {
        header.lane = i;
        if (status == STATUS_OK)
            send_slab(call, &header, data[i], count);
        else
            free(data[i]);
    }
    return status;
}

static void state_start(struct rpc_call *call, void *user)
{
    (void)user; /* stays the call's pointer */
    rpc_call_receive(call);
}

static void state_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct service *s = user;
    struct job *j = NULL;
    struct chunk_header question;
    struct error err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message) {
        rpc_call_finish(call, STATUS_PROTOCOL, "a State call without a question");
        return;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_chunk(head, size, &question, &err);
    if (status == STATUS_OK)
        status = take_job(s, call, &question, &j, &err);
    if (status == STATUS_OK) {
        status = answer(call, j, &question, &err);
        service_drop_job(s, j);
    }
    rpc_call_finish(call, status, err.text);
}

static void state_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    (void)call;
    (void)result;
    (void)user;
}

const struct rpc_handler state_handler = {
    .start = state_start, .message = state_message, .closed = state_closed};
