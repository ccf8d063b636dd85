/*
 * sim_log: the state that outlives a server.  Records go to a journal, which has them when the sink
 * returns, or to a replica, whose acknowledgement delays the replies.  Snapshots are taken one
 * partition after the other.
 */
#include "tests/server/shard/simulation.h"

#include "tests/support/support.h"

#include <string.h>

static struct error err;

struct shard_config sim_shard_config(const struct sim_server *v)
{
    const struct sim_plan *p = &v->sim->plan;
    struct shard_config config = {.map = &v->sim->map,
                                  .index = v->index,
                                  .world_size = p->ranks,
                                  .update = p->update,
                                  .rank_order = p->exact,
                                  .previous = p->on_loss == SIM_WAIT,
                                  .optimizer =
                                      optimizer_defaults(p->exact ? OPTIMIZER_ADAM : OPTIMIZER_SGD),
                                  .consistency = p->consistency,
                                  .compression = p->compression};

    if (!p->exact)
        config.optimizer.learning_rate = consistency_steps_per_push(&p->consistency) ? p->ranks : 1;
    return config;
}

/* ------------------------------------------------------------------ records */

/* The sink.  The server may crash here: before or after it stores the record. */
static enum status append_record(void *user, const struct mutation *record, struct error *error)
{
    struct sim_server *v = user;
    struct sim_record *r;

    if (v->dying || (v->die_in > 0 && --v->die_in == 0)) {
        v->dying = true;
        if (sim_below(v->sim, 2) == 0)
            return error_set(error, STATUS_UNAVAILABLE, "the server dies");
    }
    if (v->record_count == SIM_RECORDS)
        sim_fail("%zu records", v->record_count);
    r = &v->records[v->record_count++];
    r->record = *record;
    memcpy(r->clocks, record->clocks, record->world_size * sizeof(*r->clocks));
    memcpy(r->flags, record->flags, record->world_size);
    if (record->count > 0)
        memcpy(r->payload, record->payload, record->count * sizeof(float));
    r->record.clocks = r->clocks;
    r->record.flags = r->flags;
    r->record.payload = record->count > 0 ? r->payload : NULL;
    if (v->dying)
        return error_set(error, STATUS_UNAVAILABLE, "the server dies");
    return STATUS_OK;
}

void sim_watch(struct sim_server *v)
{
    struct shard_sink sink = {.on_mutation = append_record, .user = v};

    if (v->durability != SIM_VOLATILE)
        shard_set_sink(&v->shard, SHARD_SINK_DISK, &sink);
}

/* ------------------------------------------------------------------ the server crashes */

static void restore_from_log(struct sim_server *v)
{
    struct shard_config config = sim_shard_config(v);

    shard_release(&v->shard);
    sim_require_ok(shard_init(&v->shard, &config, &err), "init", &err);
    for (unsigned i = 0; v->has_snapshot && i < v->count; i++)
        sim_require_ok(shard_import(&v->shard, v->partitions[i], &v->snapshot[i].state, &err),
                       "import", &err);
    for (size_t i = 0; i < v->record_count; i++) {
        bool applied;

        sim_require_ok(shard_apply(&v->shard, &v->records[i].record, NULL, &applied, &err),
                       "replay", &err);
    }
    v->taken = 0;
}

/* Another process continues from the journal or the replica; all ranks reconnect. */
void sim_server_crash(struct sim_server *v)
{
    v->sim->crashes++;
    v->dying = false;
    v->die_in = 0;
    if (v->durability == SIM_JOURNAL) {
        restore_from_log(v);
    } else {
        v->sim->failovers++;
        shard_release(&v->shard);
        v->shard = v->replica;
        v->replica = (struct shard){0};
        v->durability = SIM_VOLATILE;
    }
    sim_watch(v);
    for (unsigned rank = 0; rank < v->sim->plan.ranks; rank++) {
        struct sim_rank *r = &v->ranks[rank];

        sim_break(v, rank);
        if (r->state == SIM_VACATING || r->state == SIM_VACANT)
            r->state = SIM_VACATING; /* only some partitions may be vacated */
        if (r->state != SIM_JOINED)
            r->next = 0;
    }
}

static void export_partition(struct sim_server *v, unsigned index)
{
    struct sim_state *t = &v->taking[index];

    t->state = (struct shard_state){.clocks = t->clocks,
                                    .seen = t->seen,
                                    .flags = t->flags,
                                    .values = t->slabs[0],
                                    .moments = {t->slabs[1], t->slabs[2]},
                                    .previous = t->slabs[3],
                                    .codec_state = t->slabs[4]};
    sim_require_ok(shard_export(&v->shard, v->partitions[index], &t->state, &err), "export", &err);
}

/* One step of a snapshot: each partition is exported at another time, so the journal is kept from
 * the snapshot's beginning on. */
void sim_server_snapshot(struct sim_server *v)
{
    if (v->taken == 0)
        v->snapshot_from = v->record_count;
    export_partition(v, v->taken++);
    if (v->taken < v->count)
        return;
    memcpy(v->snapshot, v->taking, sizeof(v->snapshot));
    for (unsigned i = 0; i < v->count; i++) {
        struct sim_state *t = &v->snapshot[i];

        t->state.clocks = t->clocks;
        t->state.seen = t->seen;
        t->state.flags = t->flags;
        t->state.values = t->slabs[0];
        t->state.moments[0] = t->slabs[1];
        t->state.moments[1] = t->slabs[2];
        t->state.previous = t->slabs[3];
        t->state.codec_state = t->slabs[4];
    }
    v->has_snapshot = true;
    v->record_count -= v->snapshot_from;
    memmove(v->records, v->records + v->snapshot_from, v->record_count * sizeof(*v->records));
    for (size_t i = 0; i < v->record_count; i++) {
        struct sim_record *r = &v->records[i];

        r->record.clocks = r->clocks;
        r->record.flags = r->flags;
        r->record.payload = r->record.count > 0 ? r->payload : NULL;
    }
    v->taken = 0;
}

void sim_server_replicate(struct sim_server *v)
{
    bool applied = false;

    sim_require_ok(
        shard_apply(&v->replica, &v->records[v->replicated++].record, NULL, &applied, &err),
        "replicate", &err);
    if (!applied)
        sim_fail("a record came to the replica twice");
}

void sim_server_acknowledge(struct sim_server *v)
{
    const struct mutation *r = &v->records[v->acknowledged++].record;

    v->acknowledged_to[r->partition] = r->sequence;
    sim_server_release(v, r->partition, r->sequence);
}
