/*
 * The State call: a rank fetches a whole partition, values and optimizer state of one point in
 * time, for a checkpoint.  It is copied under the partition's lock and sent from the copies, which
 * gRPC frees.
 *
 * Copies live until the peer has read them, so a session may have only CALLS_MAX such calls open.
 * A worker has one at a time; the previous one may not be closed here when the worker has received
 * its end, and one of a broken connection closes when gRPC has detected the break.  An open call
 * does not hold its job: a peer that does not read keeps its copies, not the shard.
 *
 * Locking: the table's lock guards the list of calls.
 */
#include "common/base/memory.h"
#include "server/service/call_binding.h"

#include <inttypes.h>
#include <stdlib.h>

#define SLABS_MAX 3 /* values and two states */
#define CALLS_MAX 4 /* of one session, open at once */

/* One State call. */
struct state_call {
    struct service *service;
    uint64_t session;        /* of the rank, once the call is admitted */
    struct state_call *next; /* in the service's list, once admitted; under the table's lock */
};

/* Count the call against the limit of its session and add it to the list.  Lock held. */
static enum status admit_state_call(struct state_call *c, const struct chunk_header *h,
                                    struct error *err)
{
    struct service *s = c->service;
    unsigned open = 0;

    for (const struct state_call *o = s->state_calls; o; o = o->next)
        open += o->session == h->session;
    if (open >= CALLS_MAX)
        return error_set(err, STATUS_NO_MEMORY,
                         "rank %" PRIu32 " asks for a state while %u others of its are under way",
                         h->rank, open);
    c->session = h->session;
    c->next = s->state_calls;
    s->state_calls = c;
    return STATUS_OK;
}

/* The job that the request is about, with one use of it.  *ret is untouched on failure. */
static enum status admit_and_ref_job(struct state_call *c, const struct rpc_call *call,
                                     const struct chunk_header *h, struct job **ret,
                                     struct error *err)
{
    struct service *s = c->service;
    const struct call_claim claim = {
        .rank = h->rank, .session = h->session, .what = "asked for a state"};
    enum status status = authorize_rank(s, call, h->rank, err);

    if (status == STATUS_OK && (h->kind != CHUNK_STATE || h->session == 0))
        status = error_set(err, STATUS_PROTOCOL,
                           "rank %" PRIu32 " asked for a state by a chunk of kind %d%s", h->rank,
                           (int)h->kind, h->session == 0 ? " without a session" : "");
    if (status != STATUS_OK)
        return status;
    (void)pthread_mutex_lock(&s->table.lock);
    status = call_binding_check(s, &claim, err);
    if (status == STATUS_OK)
        status = admit_state_call(c, h, err);
    if (status == STATUS_OK) {
        s->table.current->users++;
        *ret = s->table.current;
    }
    (void)pthread_mutex_unlock(&s->table.lock);
    return status;
}

static void send_state_chunk(struct rpc_call *call, struct chunk_header *header, float *data,
                             size_t count)
{
    const struct rpc_payload payload = {
        .data = data, .size = count * sizeof(float), .release = free, .user = data};
    uint8_t head[WIRE_CHUNK_HEAD_MAX];

    header->length = payload.size;
    (void)rpc_call_send(call, head, wire_pack_chunk(header, head), &payload);
}

static enum status send_state(struct rpc_call *call, struct job *j,
                              const struct chunk_header *request, struct error *err)
{
    size_t count = shard_partition_count(&j->shard, request->partition);
    unsigned slabs = 1 + j->shard.optimizer.states;
    struct chunk_header header = {
        .kind = CHUNK_STATE, .rank = request->rank, .partition = request->partition};
    float *data[SLABS_MAX] = {NULL};
    enum status status = STATUS_OK;

    for (unsigned i = 0; status == STATUS_OK && i < slabs; i++)
        status = mem_calloc(count, sizeof(float), "copy of a partition", &data[i], err);
    if (status == STATUS_OK)
        status =
            shard_read_state(&j->shard, request->partition, data[0], &data[1], &header.round, err);
    for (unsigned i = 0; i < slabs; i++) {
        header.lane = i;
        if (status == STATUS_OK)
            send_state_chunk(call, &header, data[i], count);
        else
            free(data[i]);
    }
    return status;
}

static void state_start(struct rpc_call *call, void *user)
{
    struct state_call *c = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*c), "state call", &c, &err) != STATUS_OK)
        rpc_call_finish(call, err.status, err.text);
    else
        c->service = user;
    rpc_call_set_user(call, c);
    if (c)
        rpc_call_receive(call);
}

static void state_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct state_call *c = user;
    struct job *j = NULL;
    struct chunk_header request;
    struct error err = {0};
    const uint8_t *head;
    size_t size;
    enum status status;

    if (!message) {
        rpc_call_finish(call, STATUS_PROTOCOL, "a State call without a request");
        return;
    }
    head = rpc_message_head(message, &size);
    status = wire_unpack_chunk(head, size, &request, &err);
    if (status == STATUS_OK)
        status = admit_and_ref_job(c, call, &request, &j, &err);
    if (status == STATUS_OK) {
        status = send_state(call, j, &request, &err);
        job_table_unref(&c->service->table, j);
    }
    rpc_call_finish(call, status, err.text);
}

static void state_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct state_call *c = user;

    (void)call;
    (void)result;
    if (!c)
        return;
    (void)pthread_mutex_lock(&c->service->table.lock);
    for (struct state_call **at = &c->service->state_calls; *at; at = &(*at)->next) {
        if (*at == c) {
            *at = c->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&c->service->table.lock);
    free(c);
}

const struct rpc_handler state_handler = {
    .start = state_start, .message = state_message, .closed = state_closed};
