/*
 * The server: one shard, and the bookkeeping that a real one has around it.  Records go to a
 * journal, which has them when the sink returns, or to a replica, for whose word answers wait.
 */
#include "tests/server/simulation.h"

#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

static struct error err;

static void require_ok(enum status status, const char *what)
{
    if (status != STATUS_OK)
        sim_fail("%s: %s", what, err.text);
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

struct shard_config sim_shard_config(const struct sim *s)
{
    const struct sim_plan *p = &s->plan;
    struct shard_config config = {.map = &s->map,
                                  .world_size = p->ranks,
                                  .update = p->update,
                                  .rank_order = p->exact,
                                  .previous = p->on_loss == SIM_WAIT,
                                  .optimizer =
                                      optimizer_defaults(p->exact ? OPTIMIZER_ADAM : OPTIMIZER_SGD),
                                  .consistency = p->consistency};

    if (!p->exact)
        config.optimizer.learning_rate = consistency_steps_each(&p->consistency) ? p->ranks : 1;
    return config;
}

/* ------------------------------------------------------------------ records */

/* The server may die here: with its record, or just before. */
static enum status put(void *user, const struct shard_record *record, struct error *error)
{
    struct sim *s = user;
    struct sim_record *r;

    if (s->dying || (s->die_in > 0 && --s->die_in == 0)) {
        s->dying = true;
        if (sim_below(s, 2) == 0)
            return error_set(error, STATUS_UNAVAILABLE, "the server dies");
    }
    if (s->record_count == s->record_capacity)
        sim_fail("%zu records", s->record_count);
    r = &s->records[s->record_count++];
    r->record = *record;
    memcpy(r->clocks, record->clocks, record->world_size * sizeof(*r->clocks));
    memcpy(r->flags, record->flags, record->world_size);
    if (record->count > 0)
        memcpy(r->payload, record->payload, record->count * sizeof(float));
    r->record.clocks = r->clocks;
    r->record.flags = r->flags;
    r->record.payload = record->count > 0 ? r->payload : NULL;
    if (s->dying)
        return error_set(error, STATUS_UNAVAILABLE, "the server dies");
    return STATUS_OK;
}

static void watch(struct sim *s)
{
    struct shard_sink sink = {.put = put, .user = s};

    if (s->durability != SIM_VOLATILE)
        shard_set_sink(&s->shard, &sink);
}

void sim_server_open(struct sim *s)
{
    struct shard_config config = sim_shard_config(s);

    s->durability = s->plan.durability;
    require_ok(shard_init(&s->shard, &config, &err), "init");
    if (s->durability == SIM_REPLICA)
        require_ok(shard_init(&s->replica, &config, &err), "replica");
    watch(s);
}

void sim_server_close(struct sim *s)
{
    shard_release(&s->shard);
    shard_release(&s->replica);
}

/* ------------------------------------------------------------------ answers */

static void dispatch(struct sim *s, unsigned rank, enum sim_kind kind, uint32_t partition,
                     const struct shard_answer *answer)
{
    struct sim_message m = {.kind = kind,
                            .partition = partition,
                            .round = answer->round,
                            .data = answer->data,
                            .count = answer->count,
                            .sum = sim_sum(answer->data, answer->count)};

    if (s->workers[rank].connected)
        sim_enqueue(s, &s->workers[rank].down[partition % s->plan.lanes], m);
}

/* Send, or keep until the replica has all that is in it. */
static void answer_rank(struct sim *s, unsigned rank, enum sim_kind kind, uint32_t partition,
                        const struct shard_answer *answer)
{
    struct sim_held *held = &s->held[rank][partition];

    if (answer->is_final && kind == SIM_PUSH)
        kind = SIM_FINAL;
    held->kind = SIM_NOTHING;
    if (s->durability != SIM_REPLICA || s->acknowledged_to[partition] >= answer->sequence)
        dispatch(s, rank, kind, partition, answer);
    else
        *held = (struct sim_held){.kind = kind, .answer = *answer};
}

static void answer_waiting(struct sim *s, uint32_t partition)
{
    struct shard_answer answer;

    for (unsigned rank = 0; shard_next_answer(&s->shard, partition, &rank, &answer); rank++)
        answer_rank(s, rank, SIM_PUSH, partition, &answer);
}

/* The connection is gone, and all that was on it.  Answers that are held are asked for again. */
void sim_break(struct sim *s, unsigned rank)
{
    struct sim_worker *w = &s->workers[rank];

    w->connected = false;
    for (unsigned lane = 0; lane < SIM_LANES; lane++)
        w->up[lane].length = w->down[lane].length = 0;
    for (unsigned partition = 0; partition < SIM_PARTITIONS; partition++)
        s->held[rank][partition].kind = SIM_NOTHING;
    shard_suspend(&s->shard, rank);
}

/* ------------------------------------------------------------------ what comes in */

/* A call failed: the server has died in the middle of it, or something is wrong. */
static bool survived(struct sim *s, enum status status, const char *what, unsigned rank,
                     const struct sim_message *m)
{
    if (s->dying) {
        sim_server_crash(s);
        return false;
    }
    if (status != STATUS_OK)
        sim_fail("%s of rank %u, partition %u, round %d%s: %s", what, rank,
                 m ? (unsigned)m->partition : 0, m ? (int)m->round : 0,
                 m && m->again ? " (again)" : "", err.text);
    return true;
}

static void take_init(struct sim *s, unsigned rank, const struct sim_message *m)
{
    float values[SIM_FULL];
    struct shard_source source = {.copy = source_copy, .user = values};
    struct shard_answer answer;
    unsigned reader;
    bool again;

    sim_initial(s, m->partition, values);
    if (!survived(s, shard_set(&s->shard, m->partition, &source, m->again, &again, &err), "init",
                  rank, m))
        return;
    while (shard_next_parked(&s->shard, m->partition, &reader, &answer))
        answer_rank(s, reader, SIM_PULL, m->partition, &answer);
}

static void take_push(struct sim *s, unsigned rank, const struct sim_message *m)
{
    float payload[SIM_FULL];
    struct shard_source source = {.copy = source_copy, .add = source_add, .user = payload};
    struct shard_answer answer;

    if (sim_sum(m->data, m->count) != m->sum)
        sim_fail("the gradient of rank %u changed before it was there", rank);
    memcpy(payload, m->data, m->count * sizeof(float));
    if (!survived(
            s,
            shard_push(&s->shard, m->partition, rank, m->round, m->again, &source, &answer, &err),
            "push", rank, m))
        return;
    if (answer.data)
        answer_rank(s, rank, SIM_PUSH, m->partition, &answer);
    if (answer.complete)
        answer_waiting(s, m->partition);
}

void sim_server_take(struct sim *s, unsigned rank, const struct sim_message *m)
{
    struct shard_answer answer = {0};
    enum status status;

    if (m->kind == SIM_INIT) {
        take_init(s, rank, m);
    } else if (m->kind == SIM_PUSH) {
        take_push(s, rank, m);
    } else if (m->kind == SIM_PULL) {
        status = shard_pull(&s->shard, m->partition, rank, m->round, m->again, &answer, &err);
        if (survived(s, status, "pull", rank, m) && answer.data)
            answer_rank(s, rank, SIM_PULL, m->partition, &answer);
    } else {
        status = shard_finish(&s->shard, m->partition, rank, true, m->again, &answer, &err);
        if (survived(s, status, "end", rank, m))
            answer_waiting(s, m->partition);
    }
}

/* ------------------------------------------------------------------ who holds a slot */

void sim_server_lose(struct sim *s, unsigned rank)
{
    struct sim_worker *w = &s->workers[rank];
    struct shard_answer answer;

    w->life = SIM_VACATING;
    if (!survived(s, shard_vacate(&s->shard, w->next, rank, &answer, &err), "loss", rank, NULL))
        return;
    answer_waiting(s, w->next);
    if (++w->next == s->plan.partitions)
        w->life = SIM_VACANT;
}

/* Does the replica know all that has happened? */
static bool is_safe(const struct sim *s)
{
    for (unsigned i = 0; s->durability == SIM_REPLICA && i < s->plan.partitions; i++)
        if (s->acknowledged_to[i] < s->shard.parts[i].sequence)
            return false;
    return true;
}

/* The newcomer is told when all partitions know of it, and it is safe that they do. */
void sim_server_admit(struct sim *s, unsigned rank)
{
    struct sim_worker *w = &s->workers[rank];
    enum status status;

    if (w->life != SIM_JOINING)
        w->next = 0;
    w->life = SIM_JOINING;
    if (w->next == s->plan.partitions) {
        if (is_safe(s)) {
            s->newcomers++;
            sim_worker_start(s, rank, true);
        }
        return;
    }
    status = s->plan.on_loss == SIM_WAIT ? shard_replace(&s->shard, w->next, rank, &err)
                                         : shard_occupy(&s->shard, w->next, rank, &err);
    if (survived(s, status, "join", rank, NULL))
        w->next++;
}

/* ------------------------------------------------------------------ the server's death */

static void restore(struct sim *s)
{
    struct shard_config config = sim_shard_config(s);

    shard_release(&s->shard);
    require_ok(shard_init(&s->shard, &config, &err), "init");
    for (uint32_t i = 0; s->has_snapshot && i < s->plan.partitions; i++)
        require_ok(shard_import(&s->shard, i, &s->snapshot[i].state, &err), "import");
    for (size_t i = 0; i < s->record_count; i++) {
        bool applied;

        require_ok(shard_apply(&s->shard, &s->records[i].record, NULL, &applied, &err), "replay");
    }
    s->taken = 0;
}

/* Another process takes over what the journal or the replica has; everybody connects again. */
void sim_server_crash(struct sim *s)
{
    s->crashes++;
    s->dying = false;
    s->die_in = 0;
    if (s->durability == SIM_JOURNAL) {
        restore(s);
    } else {
        s->failovers++;
        shard_release(&s->shard);
        s->shard = s->replica;
        s->replica = (struct shard){0};
        s->durability = SIM_VOLATILE;
    }
    watch(s);
    for (unsigned rank = 0; rank < s->plan.ranks; rank++) {
        struct sim_worker *w = &s->workers[rank];

        sim_break(s, rank);
        if (w->life == SIM_VACATING || w->life == SIM_VACANT)
            w->life = SIM_LOST; /* some partitions may know of it, some not */
        if (w->life == SIM_LOST || w->life == SIM_JOINING)
            w->next = 0;
    }
}

static void take_state(struct sim *s, uint32_t partition)
{
    struct sim_state *t = &s->taking[partition];

    t->state = (struct shard_state){.clocks = t->clocks,
                                    .seen = t->seen,
                                    .flags = t->flags,
                                    .values = t->slabs[0],
                                    .moments = {t->slabs[1], t->slabs[2]},
                                    .previous = t->slabs[3]};
    require_ok(shard_export(&s->shard, partition, &t->state, &err), "export");
}

/* Records of the journal from its beginning on, and partitions that are each of another moment. */
void sim_server_snapshot(struct sim *s)
{
    if (s->taken == 0)
        s->snapshot_from = s->record_count;
    take_state(s, s->taken++);
    if (s->taken < s->plan.partitions)
        return;
    memcpy(s->snapshot, s->taking, sizeof(s->snapshot));
    for (unsigned i = 0; i < s->plan.partitions; i++) {
        struct sim_state *t = &s->snapshot[i];

        t->state.clocks = t->clocks;
        t->state.seen = t->seen;
        t->state.flags = t->flags;
        t->state.values = t->slabs[0];
        t->state.moments[0] = t->slabs[1];
        t->state.moments[1] = t->slabs[2];
        t->state.previous = t->slabs[3];
    }
    s->has_snapshot = true;
    s->record_count -= s->snapshot_from;
    memmove(s->records, s->records + s->snapshot_from, s->record_count * sizeof(*s->records));
    for (size_t i = 0; i < s->record_count; i++) {
        struct sim_record *r = &s->records[i];

        r->record.clocks = r->clocks;
        r->record.flags = r->flags;
        r->record.payload = r->record.count > 0 ? r->payload : NULL;
    }
    s->taken = 0;
}

void sim_server_replicate(struct sim *s)
{
    bool applied = false;

    require_ok(shard_apply(&s->replica, &s->records[s->replicated++].record, NULL, &applied, &err),
               "replicate");
    if (!applied)
        sim_fail("a record came to the replica twice");
}

void sim_server_acknowledge(struct sim *s)
{
    const struct shard_record *r = &s->records[s->acknowledged++].record;

    s->acknowledged_to[r->partition] = r->sequence;
    for (unsigned rank = 0; rank < s->plan.ranks; rank++) {
        struct sim_held *held = &s->held[rank][r->partition];

        if (held->kind != SIM_NOTHING && held->answer.sequence <= r->sequence) {
            dispatch(s, rank, held->kind, r->partition, &held->answer);
            held->kind = SIM_NOTHING;
        }
    }
}
