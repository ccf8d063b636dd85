/*
 * sim_server: one shard, and around it the pending replies and rank states of a real server.
 */
#include "tests/server/shard/simulation.h"

#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

static struct error err;

void sim_require_ok(enum status status, const char *what, const struct error *why)
{
    if (status != STATUS_OK)
        sim_fail("%s: %s", what, why->text);
}

static enum status source_copy(void *user, float *dst, size_t count, struct error *error)
{
    (void)error;
    memcpy(dst, user, count * sizeof(float));
    return STATUS_OK;
}

static enum status source_add(void *user, float *dst, size_t count, struct error *error)
{
    const float *src = user;

    (void)error;
    for (size_t i = 0; i < count; i++)
        dst[i] += src[i];
    return STATUS_OK;
}

static enum status memory_keep(void *user, struct shard_source *ret, struct error *error);

/* The worker's own gradient, as in shared memory. */
static struct shard_source memory_source(const float *data)
{
    return (struct shard_source){
        .keep = memory_keep, .user = (void *)(uintptr_t)data, .elements = data, .factor = 1};
}

static enum status memory_keep(void *user, struct shard_source *ret, struct error *error)
{
    (void)error;
    *ret = memory_source(user);
    return STATUS_OK;
}

void sim_server_open(struct sim *s, unsigned index, struct sim_record *records)
{
    struct sim_server *v = &s->servers[index];
    struct shard_config config;

    v->sim = s;
    v->index = index;
    v->count = (unsigned)shard_map_held(&s->map, index, &v->partitions);
    v->records = records;
    v->durability = s->plan.durability;
    config = sim_shard_config(v);
    sim_require_ok(shard_init(&v->shard, &config, &err), "init", &err);
    if (v->durability == SIM_REPLICA)
        sim_require_ok(shard_init(&v->replica, &config, &err), "replica", &err);
    sim_watch(v);
}

void sim_server_close(struct sim_server *v)
{
    shard_release(&v->shard);
    shard_release(&v->replica);
}

/* ------------------------------------------------------------------ replies */

/* The rank's copy after it has applied the reply. */
static const float *held_by(const struct sim_server *v, unsigned rank, uint32_t partition,
                            const struct shard_reply *reply)
{
    size_t offset = v->shard.parts[v->sim->map.partitions[partition].local_index].offset;
    const float *held = reply_encoding_common_copy(&v->shard.encoding, offset);

    if (!reply->coded)
        return reply->data;
    return v->shard.rank_values ? v->shard.rank_values + rank * v->shard.count + offset : held;
}

/* Rounded values of lockstep: the server has no copy to compare with. */
static uint32_t sum_of_rounded(const struct sim_server *v, const struct shard_reply *reply)
{
    float rounded[SIM_FULL];
    struct error error = {0};

    sim_require_ok(codec_decode(&v->shard.encoding.codec, reply->coded, reply->bytes, rounded,
                                reply->count, CODEC_REPLACE, &error),
                   "decode", &error);
    return sim_sum(rounded, reply->count);
}

static void dispatch(struct sim_server *v, unsigned rank, enum sim_kind kind, uint32_t partition,
                     const struct shard_reply *reply)
{
    struct sim_link *link = &v->sim->workers[rank].links[v->index];
    const float *held = held_by(v, rank, partition, reply);
    struct sim_message m = {.kind = kind,
                            .partition = partition,
                            .round = reply->round,
                            .data = reply->data,
                            .coded = reply->coded,
                            .bytes = reply->bytes,
                            .count = reply->count};

    m.sum = sim_sum_of(&m);
    m.holds = held ? sim_sum(held, m.count) : sum_of_rounded(v, reply);
    v->sim->coded += m.coded != NULL;

    if (link->connected)
        sim_enqueue(v->sim, &link->down[partition % v->sim->plan.lanes], m);
}

/* Send, or keep until the replica has all that is in it. */
static void reply_rank(struct sim_server *v, unsigned rank, enum sim_kind kind, uint32_t partition,
                       const struct shard_reply *reply)
{
    struct sim_held *held = &v->held[rank][partition];

    if (reply->is_final && kind == SIM_PUSH)
        kind = SIM_FINAL;
    held->kind = SIM_NOTHING;
    if (v->durability != SIM_REPLICA || v->acknowledged_to[partition] >= reply->sequence)
        dispatch(v, rank, kind, partition, reply);
    else
        *held = (struct sim_held){.kind = kind, .reply = *reply};
}

static void reply_waiting(struct sim_server *v, uint32_t partition)
{
    struct shard_reply reply;

    for (unsigned rank = 0; shard_next_reply(&v->shard, partition, &rank, &reply); rank++)
        reply_rank(v, rank, SIM_PUSH, partition, &reply);
}

/* The connection is gone, and all that was on it.  Answers that are held are asked for again. */
void sim_break(struct sim_server *v, unsigned rank)
{
    struct sim_link *link = &v->sim->workers[rank].links[v->index];

    link->connected = false;
    for (unsigned lane = 0; lane < SIM_LANES; lane++)
        link->up[lane].length = link->down[lane].length = 0;
    for (unsigned partition = 0; partition < SIM_PARTITIONS; partition++)
        v->held[rank][partition].kind = SIM_NOTHING;
    shard_suspend(&v->shard, rank);
}

/* The replica has acknowledged the partition's records up to `sequence`: send the replies. */
void sim_server_release(struct sim_server *v, uint32_t partition, uint64_t sequence)
{
    for (unsigned rank = 0; rank < v->sim->plan.ranks; rank++) {
        struct sim_held *held = &v->held[rank][partition];

        if (held->kind != SIM_NOTHING && held->reply.sequence <= sequence) {
            dispatch(v, rank, held->kind, partition, &held->reply);
            held->kind = SIM_NOTHING;
        }
    }
}

/* ------------------------------------------------------------------ messages received */

/* False: the server crashed during the call.  Any other failure is an error of the test. */
static bool survived(struct sim_server *v, enum status status, const char *what, unsigned rank,
                     const struct sim_message *m)
{
    if (v->dying) {
        sim_server_crash(v);
        return false;
    }
    if (status != STATUS_OK)
        sim_fail("%s of rank %u, partition %u, round %d%s: %s", what, rank,
                 m ? (unsigned)m->partition : 0, m ? (int)m->round : 0,
                 m && m->again ? " (again)" : "", err.text);
    return true;
}

static void take_init(struct sim_server *v, unsigned rank, const struct sim_message *m)
{
    float values[SIM_FULL];
    struct shard_source source = {.copy = source_copy, .user = values};
    struct shard_reply reply;
    unsigned reader;
    bool again;

    sim_initial(v->sim, m->partition, values);
    if (!survived(v, shard_set(&v->shard, m->partition, &source, m->again, &again, &err), "init",
                  rank, m))
        return;
    while (shard_next_parked(&v->shard, m->partition, &reader, &reply))
        reply_rank(v, reader, SIM_PULL, m->partition, &reply);
}

static void take_push(struct sim_server *v, unsigned rank, const struct sim_message *m)
{
    float payload[SIM_FULL];
    struct shard_source source = {.copy = source_copy, .add = source_add, .user = payload};
    struct shard_reply reply;

    if (sim_sum(m->data, m->count) != m->sum)
        sim_fail("the gradient of rank %u changed before it was there", rank);
    memcpy(payload, m->data, m->count * sizeof(float));
    if (rank % 2 == 1)
        source = memory_source(m->data);
    if (!survived(
            v, shard_push(&v->shard, m->partition, rank, m->round, m->again, &source, &reply, &err),
            "push", rank, m))
        return;
    if (reply.data)
        reply_rank(v, rank, SIM_PUSH, m->partition, &reply);
    if (reply.complete)
        reply_waiting(v, m->partition);
}

void sim_server_take(struct sim_server *v, unsigned rank, const struct sim_message *m)
{
    struct shard_reply reply = {0};
    enum status status;

    if (m->kind == SIM_INIT) {
        take_init(v, rank, m);
    } else if (m->kind == SIM_PUSH) {
        take_push(v, rank, m);
    } else if (m->kind == SIM_PULL) {
        status = shard_pull(&v->shard, m->partition, rank, m->round, m->again, &reply, &err);
        if (survived(v, status, "pull", rank, m) && reply.data)
            reply_rank(v, rank, SIM_PULL, m->partition, &reply);
    } else {
        status = shard_finish(&v->shard, m->partition, rank, true, m->again, &reply, &err);
        if (survived(v, status, "end", rank, m))
            reply_waiting(v, m->partition);
    }
}

/* ------------------------------------------------------------------ leaving and joining */

void sim_server_lose(struct sim_server *v, unsigned rank)
{
    struct sim_rank *r = &v->ranks[rank];
    uint32_t partition;
    struct shard_reply reply;

    if (r->state != SIM_VACATING)
        r->next = 0;
    r->state = SIM_VACATING;
    partition = v->partitions[r->next];
    if (!survived(v, shard_vacate(&v->shard, partition, rank, &reply, &err), "loss", rank, NULL))
        return;
    reply_waiting(v, partition);
    if (++r->next == v->count)
        r->state = SIM_VACANT;
}

/* Has the replica acknowledged all records? */
static bool is_safe(const struct sim_server *v)
{
    for (unsigned i = 0; v->durability == SIM_REPLICA && i < v->count; i++)
        if (v->acknowledged_to[v->partitions[i]] < v->shard.parts[i].sequence)
            return false;
    return true;
}

/* A newcomer starts when all servers have admitted it. */
static void start_newcomer(struct sim *s, unsigned rank)
{
    for (unsigned k = 0; k < s->plan.servers; k++)
        if (s->servers[k].ranks[rank].state != SIM_JOINED)
            return;
    for (unsigned k = 0; k < s->plan.servers; k++)
        s->servers[k].ranks[rank].state = SIM_HELD;
    s->newcomers++;
    sim_worker_start(s, rank, true);
}

/* Admit a newcomer: one partition per call; done when the replica has acknowledged all of them. */
void sim_server_admit(struct sim_server *v, unsigned rank)
{
    struct sim_rank *r = &v->ranks[rank];
    enum status status;

    if (r->state != SIM_JOINING)
        r->next = 0;
    r->state = SIM_JOINING;
    if (r->next == v->count) {
        if (is_safe(v)) {
            r->state = SIM_JOINED;
            start_newcomer(v->sim, rank);
        }
        return;
    }
    status = v->sim->plan.on_loss == SIM_WAIT
                 ? shard_replace(&v->shard, v->partitions[r->next], rank, &err)
                 : shard_occupy(&v->shard, v->partitions[r->next], rank, &err);
    if (survived(v, status, "join", rank, NULL))
        r->next++;
}
