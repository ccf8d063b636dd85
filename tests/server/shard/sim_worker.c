/*
 * sim_worker: pulls, then rounds of pushes, then the final values if ranks are not in lockstep.
 * Keeps each message until its reply arrives, and resends all of them on a new connection.
 */
#include "tests/server/shard/simulation.h"

#include <math.h>
#include <string.h>

static uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

static float noise(uint32_t seed, size_t i)
{
    return (float)(mix(seed * 65537u + (uint32_t)i) >> 8) / 8388608.0f - 1.0f;
}

void sim_initial(const struct sim *s, uint32_t partition, float *ret)
{
    for (size_t i = 0; i < sim_count(s, partition); i++)
        ret[i] = s->plan.exact ? noise(7, sim_offset(partition) + i) : 0;
}

/* Compute the gradient of this round from the current parameters. */
static void compute_gradient(const struct sim *s, struct sim_worker *w, unsigned rank)
{
    float divisor = (float)consistency_divisor(&s->plan.consistency, s->plan.ranks);

    for (uint32_t partition = 0; partition < s->plan.partitions; partition++) {
        float *grads = w->grads + sim_offset(partition);
        const float *params = w->params + sim_offset(partition);
        size_t count = sim_count(s, partition);

        memset(grads, 0, count * sizeof(float));
        if (!s->plan.exact)
            grads[rank * (SIM_ROUNDS + 1) + w->round] = 1;
        for (size_t i = 0; s->plan.exact && i < count; i++)
            grads[i] = (noise((uint32_t)(rank * 100 + w->round), i) + 0.25f * params[i]) / divisor;
    }
}

static void send_message(struct sim *s, unsigned rank, enum sim_kind kind, uint32_t partition,
                         bool again)
{
    struct sim_worker *w = &s->workers[rank];
    struct sim_link *link = &w->links[s->map.partitions[partition].server];
    struct sim_message m = {.kind = kind, .partition = partition, .again = again};

    if (kind == SIM_PUSH || kind == SIM_FINAL)
        m.round = w->round;
    else if (kind == SIM_PULL)
        m.round = w->pull_round[partition];
    if (kind == SIM_PUSH) {
        m.data = w->grads + sim_offset(partition);
        m.count = sim_count(s, partition);
        m.sum = sim_sum(m.data, m.count);
    }
    s->repeats += again;
    if (link->connected)
        sim_enqueue(s, &link->up[partition % s->plan.lanes], m);
}

/* May the server have this contribution, or finish, from the rank's last session? */
static bool may_be_in(const struct sim_worker *w)
{
    return w->newcomer && (w->phase == SIM_FINISHING || w->round <= w->newest);
}

static void ask_all(struct sim *s, unsigned rank, enum sim_kind kind)
{
    struct sim_worker *w = &s->workers[rank];

    for (uint32_t partition = 0; partition < s->plan.partitions; partition++) {
        w->asked[partition] = kind;
        send_message(s, rank, kind, partition, kind == SIM_PULL ? w->newcomer : may_be_in(w));
    }
}

static void begin_round(struct sim *s, unsigned rank, uint64_t round)
{
    struct sim_worker *w = &s->workers[rank];

    w->round = round;
    if (round <= s->plan.rounds) {
        w->phase = SIM_PUSHING;
        compute_gradient(s, w, rank);
        ask_all(s, rank, SIM_PUSH);
    } else if (w->phase != SIM_FINISHING && !consistency_is_lockstep(&s->plan.consistency)) {
        w->phase = SIM_FINISHING;
        ask_all(s, rank, SIM_FINAL);
    } else {
        w->life = SIM_DONE;
        for (unsigned k = 0; k < s->plan.servers; k++)
            sim_break(&s->servers[k], rank);
    }
}

void sim_worker_start(struct sim *s, unsigned rank, bool newcomer)
{
    struct sim_worker *w = &s->workers[rank];

    w->life = SIM_ALIVE;
    w->newcomer = newcomer;
    for (unsigned k = 0; k < s->plan.servers; k++)
        w->links[k].connected = true;
    w->phase = SIM_PULLING;
    w->round = w->newest = 0;
    memset(w->pull_round, 0, sizeof(w->pull_round));
    memset(w->answered, 0, sizeof(w->answered));
    for (uint32_t partition = 0; partition < s->plan.partitions; partition++) {
        w->keeps_initial[partition] = rank == 0;
        if (rank == 0)
            send_message(s, rank, SIM_INIT, partition, newcomer);
    }
    ask_all(s, rank, SIM_PULL);
}

void sim_worker_reconnect(struct sim *s, unsigned rank, unsigned server)
{
    struct sim_worker *w = &s->workers[rank];
    unsigned first = sim_below(s, s->plan.partitions);

    w->links[server].connected = true;
    for (unsigned i = 0; i < s->plan.partitions; i++) {
        uint32_t partition = (first + i) % s->plan.partitions;

        if (s->map.partitions[partition].server != server)
            continue;
        if (w->keeps_initial[partition])
            send_message(s, rank, SIM_INIT, partition, true);
        if (w->asked[partition] != SIM_NOTHING)
            send_message(s, rank, w->asked[partition], partition, true);
    }
}

/* ------------------------------------------------------------------ replies */

/* All pulls are answered.  In lockstep the parameters must be of one round: partitions that are
 * further are pulled again at the older round. */
static void end_pulls(struct sim *s, unsigned rank)
{
    struct sim_worker *w = &s->workers[rank];
    uint64_t least = UINT64_MAX;
    bool mixed = false;

    for (unsigned i = 0; i < s->plan.partitions; i++)
        least = w->answered[i] < least ? w->answered[i] : least;
    for (unsigned i = 0; i < s->plan.partitions; i++)
        mixed = mixed || w->answered[i] > least;
    if (mixed && s->plan.on_loss == SIM_WAIT && consistency_is_lockstep(&s->plan.consistency)) {
        for (uint32_t i = 0; i < s->plan.partitions; i++)
            if (w->answered[i] > least) {
                w->asked[i] = SIM_PULL;
                w->pull_round[i] = least + 1;
                send_message(s, rank, SIM_PULL, i, true);
            }
        return;
    }
    if (w->newest < least + 1)
        w->newest = least + 1; /* the rank may have contributed to the round under way */
    begin_round(s, rank, least + 1);
}

/* All pushes are answered.  With backup workers the next round is the oldest that is incomplete. */
static void end_round(struct sim *s, unsigned rank)
{
    struct sim_worker *w = &s->workers[rank];
    uint64_t least = UINT64_MAX;

    for (unsigned i = 0; i < s->plan.partitions; i++)
        least = w->answered[i] < least ? w->answered[i] : least;
    begin_round(s, rank, s->plan.consistency.backup > 0 ? least + 1 : w->round + 1);
}

/* Apply the mean gradient, if this worker runs the optimizer; values are in place already. */
static void apply_reply(const struct sim *s, struct sim_worker *w, const struct sim_message *m)
{
    float *params = w->params + sim_offset(m->partition);

    for (size_t i = 0; i < m->count && !s->plan.update && m->kind != SIM_PULL; i++)
        params[i] -= 0.125f * m->data[i];
}

/* Has this worker pulled values that include the delta already? */
static bool has_change(const struct sim *s, const struct sim_worker *w, const struct sim_message *m)
{
    return consistency_is_lockstep(&s->plan.consistency) &&
           compression_mode(&s->plan.compression, s->plan.update) == CODEC_ADD &&
           w->answered[m->partition] >= m->round;
}

/* Values are decoded into the parameters; a mean is decoded separately and applied later. */
void sim_worker_decode(struct sim *s, unsigned rank, struct sim_message *m)
{
    struct sim_worker *w = &s->workers[rank];
    bool values = s->plan.update || m->kind == SIM_PULL;
    float *dst = values ? w->params + sim_offset(m->partition) : w->mean;
    struct error error = {0};

    if (!m->coded)
        memcpy(dst, m->data, m->count * sizeof(float));
    else if (!has_change(s, w, m))
        sim_require_ok(codec_decode(&s->plan.compression.down, m->coded, m->bytes, dst, m->count,
                                    compression_mode(&s->plan.compression, s->plan.update), &error),
                       "decode", &error);
    m->data = dst;
    if (values && sim_sum(dst, m->count) != m->holds)
        sim_fail("rank %u, partition %u, round %d does not hold what the server thinks", rank,
                 (unsigned)m->partition, (int)m->round);
}

void sim_worker_take_reply(struct sim *s, unsigned rank, const struct sim_message *m)
{
    struct sim_worker *w = &s->workers[rank];

    if (w->asked[m->partition] != m->kind)
        sim_fail("rank %u got a reply of kind %d and round %d for partition %u unrequested", rank,
                 (int)m->kind, (int)m->round, (unsigned)m->partition);
    if (m->kind == SIM_PUSH && m->round < w->round)
        sim_fail("rank %u asked for round %d and is answered with round %d", rank, (int)w->round,
                 (int)m->round);
    if (m->kind == SIM_PUSH && m->round > w->round && s->plan.consistency.backup == 0 &&
        !may_be_in(w))
        sim_fail("rank %u is answered with round %d in round %d", rank, (int)m->round,
                 (int)w->round);
    apply_reply(s, w, m);
    w->asked[m->partition] = SIM_NOTHING;
    w->answered[m->partition] = m->round;
    w->keeps_initial[m->partition] = false;
    if (m->kind == SIM_PULL && m->round > w->newest)
        w->newest = m->round;
    if (m->kind == SIM_PUSH && !w->newcomer)
        w->acknowledged[m->partition] |= (uint64_t)1 << w->round;
    for (unsigned i = 0; i < s->plan.partitions; i++)
        if (w->asked[i] != SIM_NOTHING)
            return;
    if (w->phase == SIM_PULLING)
        end_pulls(s, rank);
    else if (w->phase == SIM_PUSHING)
        end_round(s, rank);
    else
        begin_round(s, rank, s->plan.rounds + 1);
}
