/*
 * A server: one shard, and the bookkeeping that a real one has around it.
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

/* ------------------------------------------------------------------ answers */

/* What the rank has when it has that answer. */
static const float *held_by(const struct sim_server *v, unsigned rank, uint32_t partition,
                            const struct shard_reply *answer)
{
    size_t offset = v->shard.parts[v->sim->map.partitions[partition].local_index].offset;
    const float *held = reply_encoding_whole(&v->shard.down, offset);

    if (!answer->coded)
        return answer->data;
    return v->shard.sent ? v->shard.sent + rank * v->shard.count + offset : held;
}

/* Values that are rounded in lockstep are held nowhere. */
static uint32_t sum_of_rounded(const struct sim_server *v, const struct shard_reply *answer)
{
    float rounded[SIM_FULL];
    struct error error = {0};

    sim_require_ok(codec_decode(&v->shard.down.codec, answer->coded, answer->bytes, rounded,
                                answer->count, CODEC_REPLACE, &error),
                   "decode", &error);
    return sim_sum(rounded, answer->count);
}

static void dispatch(struct sim_server *v, unsigned rank, enum sim_kind kind, uint32_t partition,
                     const struct shard_reply *answer)
{
    struct sim_link *link = &v->sim->workers[rank].links[v->index];
    const float *held = held_by(v, rank, partition, answer);
    struct sim_message m = {.kind = kind,
                            .partition = partition,
                            .round = answer->round,
                            .data = answer->data,
                            .coded = answer->coded,
                            .bytes = answer->bytes,
                            .count = answer->count};

    m.sum = sim_sum_of(&m);
    m.holds = held ? sim_sum(held, m.count) : sum_of_rounded(v, answer);
    v->sim->coded += m.coded != NULL;

    if (link->connected)
        sim_enqueue(v->sim, &link->down[partition % v->sim->plan.lanes], m);
}

/* Send, or keep until the replica has all that is in it. */
static void answer_rank(struct sim_server *v, unsigned rank, enum sim_kind kind, uint32_t partition,
                        const struct shard_reply *answer)
{
    struct sim_held *held = &v->held[rank][partition];

    if (answer->is_final && kind == SIM_PUSH)
        kind = SIM_FINAL;
    held->kind = SIM_NOTHING;
    if (v->durability != SIM_REPLICA || v->acknowledged_to[partition] >= answer->sequence)
        dispatch(v, rank, kind, partition, answer);
    else
        *held = (struct sim_held){.kind = kind, .answer = *answer};
}

static void reply_waiting(struct sim_server *v, uint32_t partition)
{
    struct shard_reply answer;

    for (unsigned rank = 0; shard_next_reply(&v->shard, partition, &rank, &answer); rank++)
        answer_rank(v, rank, SIM_PUSH, partition, &answer);
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

/* The replica has all records of the partition up to here. */
void sim_server_release(struct sim_server *v, uint32_t partition, uint64_t sequence)
{
    for (unsigned rank = 0; rank < v->sim->plan.ranks; rank++) {
        struct sim_held *held = &v->held[rank][partition];

        if (held->kind != SIM_NOTHING && held->answer.sequence <= sequence) {
            dispatch(v, rank, held->kind, partition, &held->answer);
            held->kind = SIM_NOTHING;
        }
    }
}

/* ------------------------------------------------------------------ what comes in */

/* A call failed: the server has died in the middle of it, or something is wrong. */
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
    struct shard_reply answer;
    unsigned reader;
    bool again;

    sim_initial(v->sim, m->partition, values);
    if (!survived(v, shard_set(&v->shard, m->partition, &source, m->again, &again, &err), "init",
                  rank, m))
        return;
    while (shard_next_parked(&v->shard, m->partition, &reader, &answer))
        answer_rank(v, reader, SIM_PULL, m->partition, &answer);
}

static void take_push(struct sim_server *v, unsigned rank, const struct sim_message *m)
{
    float payload[SIM_FULL];
    struct shard_source source = {.copy = source_copy, .add = source_add, .user = payload};
    struct shard_reply answer;

    if (sim_sum(m->data, m->count) != m->sum)
        sim_fail("the gradient of rank %u changed before it was there", rank);
    memcpy(payload, m->data, m->count * sizeof(float));
    if (!survived(
            v,
            shard_push(&v->shard, m->partition, rank, m->round, m->again, &source, &answer, &err),
            "push", rank, m))
        return;
    if (answer.data)
        answer_rank(v, rank, SIM_PUSH, m->partition, &answer);
    if (answer.complete)
        reply_waiting(v, m->partition);
}

void sim_server_take(struct sim_server *v, unsigned rank, const struct sim_message *m)
{
    struct shard_reply answer = {0};
    enum status status;

    if (m->kind == SIM_INIT) {
        take_init(v, rank, m);
    } else if (m->kind == SIM_PUSH) {
        take_push(v, rank, m);
    } else if (m->kind == SIM_PULL) {
        status = shard_pull(&v->shard, m->partition, rank, m->round, m->again, &answer, &err);
        if (survived(v, status, "pull", rank, m) && answer.data)
            answer_rank(v, rank, SIM_PULL, m->partition, &answer);
    } else {
        status = shard_finish(&v->shard, m->partition, rank, true, m->again, &answer, &err);
        if (survived(v, status, "end", rank, m))
            reply_waiting(v, m->partition);
    }
}

/* ------------------------------------------------------------------ who holds a slot */

void sim_server_lose(struct sim_server *v, unsigned rank)
{
    struct sim_slot *slot = &v->slots[rank];
    uint32_t partition;
    struct shard_reply answer;

    if (slot->state != SIM_VACATING)
        slot->next = 0;
    slot->state = SIM_VACATING;
    partition = v->partitions[slot->next];
    if (!survived(v, shard_vacate(&v->shard, partition, rank, &answer, &err), "loss", rank, NULL))
        return;
    reply_waiting(v, partition);
    if (++slot->next == v->count)
        slot->state = SIM_VACANT;
}

/* Does the replica know all that has happened? */
static bool is_safe(const struct sim_server *v)
{
    for (unsigned i = 0; v->durability == SIM_REPLICA && i < v->count; i++)
        if (v->acknowledged_to[v->partitions[i]] < v->shard.parts[i].sequence)
            return false;
    return true;
}

/* The newcomer begins when all servers have let it in. */
static void begin(struct sim *s, unsigned rank)
{
    for (unsigned k = 0; k < s->plan.servers; k++)
        if (s->servers[k].slots[rank].state != SIM_JOINED)
            return;
    for (unsigned k = 0; k < s->plan.servers; k++)
        s->servers[k].slots[rank].state = SIM_HELD;
    s->newcomers++;
    sim_worker_start(s, rank, true);
}

/* It is let in when all partitions know of it, and it is safe that they do. */
void sim_server_admit(struct sim_server *v, unsigned rank)
{
    struct sim_slot *slot = &v->slots[rank];
    enum status status;

    if (slot->state != SIM_JOINING)
        slot->next = 0;
    slot->state = SIM_JOINING;
    if (slot->next == v->count) {
        if (is_safe(v)) {
            slot->state = SIM_JOINED;
            begin(v->sim, rank);
        }
        return;
    }
    status = v->sim->plan.on_loss == SIM_WAIT
                 ? shard_replace(&v->shard, v->partitions[slot->next], rank, &err)
                 : shard_occupy(&v->shard, v->partitions[slot->next], rank, &err);
    if (survived(v, status, "join", rank, NULL))
        slot->next++;
}
