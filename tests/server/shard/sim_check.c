/*
 * sim_check: checks every reply on arrival, and the shards at the end of a run.
 */
#include "tests/server/shard/simulation.h"

#include <string.h>

/* Has the contribution of that rank and round been applied? */
static bool is_applied(const float *data, unsigned rank, uint64_t round)
{
    return data[rank * (SIM_ROUNDS + 1) + round] != 0;
}

/* In rounds: the weight of each of that many contributions. */
static float share(const struct sim *s, unsigned contributions)
{
    unsigned divisor = consistency_divisor(&s->plan.consistency, s->plan.ranks);

    return contributions == divisor ? 1 : 1 * (float)((double)divisor / contributions);
}

/* Each contribution is applied at most once, and with the weight of its round. */
static void check_once(const struct sim *s, const float *data, bool sums)
{
    for (uint64_t round = 1; round <= s->plan.rounds; round++) {
        unsigned contributions = 0;
        float weight = 1;

        for (unsigned rank = 0; rank < s->plan.ranks; rank++)
            contributions += is_applied(data, rank, round);
        if (contributions > 0 && !consistency_steps_per_push(&s->plan.consistency))
            weight = share(s, contributions);
        for (unsigned rank = 0; rank < s->plan.ranks; rank++) {
            float value = data[rank * (SIM_ROUNDS + 1) + round];

            if (value != 0 && value != (sums ? weight : -weight))
                sim_fail("round %d of rank %u counts %g, not %g (%u contributions)", (int)round,
                         rank, (double)value, (double)weight, contributions);
        }
    }
}

/* All contributions of the rank to rounds first..last are applied. */
static void check_holds(const struct sim *s, const float *data, unsigned rank, uint64_t first,
                        uint64_t last)
{
    for (uint64_t round = first; round <= last && round <= s->plan.rounds; round++)
        if (!is_applied(data, rank, round))
            sim_fail("round %d of rank %u is missing", (int)round, rank);
}

static void check_lacks(const struct sim *s, const float *data, uint64_t first, uint64_t last)
{
    for (unsigned rank = 0; rank < s->plan.ranks; rank++)
        for (uint64_t round = first; round <= last; round++)
            if (is_applied(data, rank, round))
                sim_fail("round %d of rank %u is in it too early", (int)round, rank);
}

/* Check what the definition of the mode guarantees for a reply at that clock. */
static void check_counted(const struct sim *s, unsigned rank, const struct sim_message *m)
{
    const struct consistency *c = &s->plan.consistency;
    bool sums = !s->plan.update && m->kind == SIM_PUSH;

    check_once(s, m->data, sums);
    if (consistency_is_lockstep(c))
        check_lacks(s, m->data, m->round + 1, s->plan.rounds);
    if (sums)
        check_lacks(s, m->data, 1, m->round - 1);
    for (unsigned other = 0; other < s->plan.ranks; other++) {
        if (s->workers[other].killed)
            continue;
        if (consistency_is_lockstep(c))
            check_holds(s, m->data, other, sums ? m->round : 1, m->round);
        else if (other == rank && c->backup == 0)
            check_holds(s, m->data, other, 1, m->round);
        else if (c->mode == CONSISTENCY_SSP && m->kind != SIM_PULL && m->round > c->staleness)
            check_holds(s, m->data, other, 1, m->round - c->staleness);
    }
}

void sim_check_arrival(const struct sim *s, unsigned rank, const struct sim_message *m)
{
    (void)s;
    if (sim_sum_of(m) != m->sum)
        sim_fail("what rank %u is answered with changed before it was there", rank);
}

/* Does the reply contain the exact values? */
static bool is_all(const struct sim *s, const struct sim_message *m)
{
    return !sim_is_lossy(&s->plan) || (!m->coded && !consistency_is_lockstep(&s->plan.consistency));
}

void sim_check_reply(struct sim *s, unsigned rank, const struct sim_message *m)
{
    float *expected = s->history + m->round * SIM_ELEMENTS + sim_offset(m->partition);
    size_t bytes = m->count * sizeof(float);

    if (m->round > s->plan.rounds)
        sim_fail("rank %u is answered with round %d", rank, (int)m->round);
    if (!s->plan.exact && !is_all(s, m))
        return;
    if (!s->plan.exact)
        check_counted(s, rank, m);
    else if (s->writes_history)
        memcpy(expected, m->data, bytes);
    else if (memcmp(expected, m->data, bytes) != 0)
        sim_fail("rank %u, partition %u, round %d differs from the run without faults", rank,
                 (unsigned)m->partition, (int)m->round);
}

/* Check the values of all shards after the last reply. */
void sim_check_end(const struct sim *s)
{
    const struct consistency *c = &s->plan.consistency;

    for (uint32_t i = 0; i < s->plan.partitions; i++) {
        const struct partition *where = &s->map.partitions[i];
        const struct shard *shard = &s->servers[where->server].shard;
        const struct policy *p = &shard->parts[where->local_index].policy;
        const float *data = shard->values + shard->parts[where->local_index].offset;

        if (!consistency_steps_per_push(c) && p->steps != s->plan.rounds)
            sim_fail("partition %u ends at round %d", (unsigned)i, (int)p->steps);
        if (s->plan.exact || !s->plan.update)
            continue;
        check_once(s, data, false);
        for (uint64_t round = 1; round <= s->plan.rounds; round++) {
            bool any = consistency_steps_per_push(c);

            for (unsigned rank = 0; rank < s->plan.ranks; rank++) {
                bool acknowledged = s->workers[rank].acknowledged[i] >> round & 1;

                any = any || is_applied(data, rank, round);
                if (c->backup == 0 && acknowledged)
                    check_holds(s, data, rank, round, round);
            }
            if (!any)
                sim_fail("round %d is lost", (int)round);
        }
    }
}
