/*
 * The State call: a rank asks for one partition as a whole, values and the state of the optimizer
 * of one moment, for a checkpoint.  It is copied under the partition's lock, and sent from the
 * copies, which core frees.
 *
 * Copies live as long as the peer takes to read them, so a session has few such calls at a time.  A
 * worker has one; the one before may not have closed here when the worker has its end, and one of a
 * connection that broke closes when core has noticed.  A call does not hold its job meanwhile:
 * whoever does not read keeps its copies, not the shard.
 */
#include "common/base/memory.h"
#include "server/service/call_binding.h"

#include <inttypes.h>
#include <stdlib.h>

#define SLABS_MAX 3 /* values and two states */
#define CALLS_MAX 4 /* of one session, open at once */

/* One State call. */
struct asking {
    struct service *service;
    uint64_t session;    /* whose it is, once it was let in */
    struct asking *next; /* in the service's list, then; under its lock */
};

/* The call has its only message.  Lock held. */
static enum status let_in(struct asking *a, const struct chunk_header *h, struct error *err)
{
    struct service *s = a->service;
    unsigned open = 0;

    for (const struct asking *other = s->asking; other; other = other->next)
        open += other->session == h->session;
    if (open >= CALLS_MAX)
        return error_set(err, STATUS_NO_MEMORY,
                         "rank %" PRIu32 " asks for a state while %u others of its are under way",
                         h->rank, open);
    a->session = h->session;
    a->next = s->asking;
    s->asking = a;
    return STATUS_OK;
}

/* The job that the question is about, with one use of it.  *ret is untouched on failure. */
static enum status take_job(struct asking *a, const struct rpc_call *call,
                            const struct chunk_header *h, struct job **ret, struct error *err)
{
    struct service *s = a->service;
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
        status = let_in(a, h, err);
    if (status == STATUS_OK) {
        s->table.current->users++;
        *ret = s->table.current;
    }
    (void)pthread_mutex_unlock(&s->table.lock);
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
    struct asking *a = NULL;
    struct error err = {0};

    if (mem_calloc(1, sizeof(*a), "question for a state", &a, &err) != STATUS_OK)
        rpc_call_finish(call, err.status, err.text);
    else
        a->service = user;
    rpc_call_set_user(call, a);
    if (a)
        rpc_call_receive(call);
}

static void state_message(struct rpc_call *call, struct rpc_message *message, void *user)
{
    struct asking *a = user;
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
        status = take_job(a, call, &question, &j, &err);
    if (status == STATUS_OK) {
        status = answer(call, j, &question, &err);
        job_table_drop(&a->service->table, j);
    }
    rpc_call_finish(call, status, err.text);
}

static void state_closed(struct rpc_call *call, const struct rpc_result *result, void *user)
{
    struct asking *a = user;

    (void)call;
    (void)result;
    if (!a)
        return;
    (void)pthread_mutex_lock(&a->service->table.lock);
    for (struct asking **at = &a->service->asking; *at; at = &(*at)->next) {
        if (*at == a) {
            *at = a->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&a->service->table.lock);
    free(a);
}

const struct rpc_handler state_handler = {
    .start = state_start, .message = state_message, .closed = state_closed};
