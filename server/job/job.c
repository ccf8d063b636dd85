/*
 * job: life cycle and counters of one job.
 *
 * Rounds need no table: a rank begins round t + 1 only after it has all of round t from every
 * server, so on one server the contributions of two rounds never mix and one set of counters
 * describes the round under way.  Where each push is a step there are no common rounds; there the
 * counters describe what happened since the slowest rank ended its last round.  The caller holds
 * the table's lock, or no other thread uses the job yet; job_open, job_build and job_close need no
 * lock.
 */
#include "server/job/job.h"

#include "common/base/host.h"
#include "common/base/memory.h"

#include <stdlib.h>
#include <string.h>

static enum status copy_rules(struct job *j, const struct join_request *request, struct error *err)
{
    enum status status = mem_calloc(request->rule_count, sizeof(*request->rules),
                                    "rules of staleness", &j->terms.rules, err);

    if (status != STATUS_OK)
        return status;
    j->terms.rule_count = request->rule_count;
    if (request->rule_count > 0)
        memcpy(j->terms.rules, request->rules, request->rule_count * sizeof(*request->rules));
    return STATUS_OK;
}

static enum status copy_weights(struct job *j, const struct join_request *request,
                                struct error *err)
{
    enum status status = mem_calloc(request->weight_count, sizeof(*request->weights),
                                    "weights of servers", &j->terms.weights, err);

    if (status != STATUS_OK)
        return status;
    j->terms.weight_count = request->weight_count;
    if (request->weight_count > 0)
        memcpy(j->terms.weights, request->weights,
               request->weight_count * sizeof(*request->weights));
    return STATUS_OK;
}

enum status job_open(const struct join_request *request, struct job **ret_job, struct error *err)
{
    struct job *j;
    enum status status = mem_calloc(1, sizeof(*j), "job", &j, err);

    if (status != STATUS_OK)
        return status;
    j->terms = *request;
    j->terms.manifest = NULL;
    j->terms.rules = NULL;
    j->terms.rule_count = 0;
    j->terms.weights = NULL;
    j->terms.weight_count = 0;
    status = copy_rules(j, request, err);
    if (status == STATUS_OK)
        status = copy_weights(j, request, err);
    if (status == STATUS_OK)
        status = membership_init(&j->members, request, err);
    if (status == STATUS_OK)
        status = mem_calloc(request->world_size, sizeof(*j->ranks), "ranks", &j->ranks, err);
    if (status != STATUS_OK) {
        job_close(j);
        return status;
    }
    *ret_job = j;
    return STATUS_OK;
}

void job_close(struct job *j)
{
    if (!j)
        return;
    for (unsigned rank = 0; j->ranks && rank < j->members.world_size; rank++)
        if (j->ranks[rank].pending_join_reply)
            rpc_call_unref(j->ranks[rank].pending_join_reply);
    shard_release(&j->shard);
    shard_map_release(&j->map);
    membership_release(&j->members);
    free(j->ranks);
    free(j->terms.rules);
    free(j->terms.weights);
    free(j);
}

enum status job_build(struct job *j, struct error *err)
{
    const struct join_request *t = &j->terms;
    struct shard_config config = {.map = &j->map,
                                  .index = t->server_index,
                                  .world_size = t->world_size,
                                  .update = t->update == 0,
                                  .rank_order = t->order == 1,
                                  .defer_replies = job_is_lockstep(j),
                                  .previous = t->on_loss == WORKER_LOSS_WAIT &&
                                              job_is_lockstep(j), /* for a replacement to start */
                                  .optimizer = t->optimizer,
                                  .steps_before = t->steps_before,
                                  .consistency = t->consistency,
                                  .compression =
                                      compression_make(t->dtype_up, t->dtype_down, t->top_k_ppm),
                                  .rules = t->rules,
                                  .rule_count = t->rule_count,
                                  .shared = j->shares};
    enum status status = membership_compare(&j->members, err);

    if (status == STATUS_OK)
        status = shard_map_make_weighted(t->element_count, t->partition_bytes, t->server_count,
                                         t->weight_count > 0 ? t->weights : NULL, &j->map, err);
    if (status == STATUS_OK)
        status = shard_init(&j->shard, &config, err);
    return status;
}

void job_run(struct job *j, int64_t now_ns)
{
    j->state = JOB_RUNNING;
    j->cpu_seconds_before = host_cpu_seconds();
    j->epoch = 1;
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        struct job_rank *r = &j->ranks[rank];

        r->heard_ns = now_ns;
        rank_session_hold(&r->session, r->join_session, r->join_lanes, now_ns);
    }
}

/* Add the counters of the round under way to the totals. */
static void add_round_to_totals(struct job *j)
{
    const struct round_record *r = &j->current;

    j->totals.rx_payload_bytes += r->rx_payload_bytes;
    j->totals.tx_payload_bytes += r->tx_payload_bytes;
    j->totals.sum_ns += r->sum_ns;
    j->totals.wait_ns += r->wait_ns;
    j->current = (struct round_record){0};
}

bool job_end(struct job *j, const struct error *failure, int64_t now_ns)
{
    if (j->state == JOB_OVER)
        return false;
    j->state = JOB_OVER;
    j->over_ns = now_ns;
    if (!job_is_lockstep(j)) /* pushes after the last complete round have been applied, too */
        add_round_to_totals(j);
    if (failure)
        j->failure = *failure;
    return true;
}

uint64_t job_round(const struct job *j)
{
    return j->totals.rounds + 1;
}

bool job_is_lockstep(const struct job *j)
{
    return consistency_is_lockstep(&j->terms.consistency);
}

bool job_is_pending(const struct job *j)
{
    bool parked = false;

    if (job_is_lockstep(j))
        return j->arrived > 0;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        parked = parked || j->ranks[rank].parked > 0;
    return parked;
}

size_t job_waiting(const struct job *j)
{
    size_t sum = 0;

    if (job_is_lockstep(j))
        return j->arrived - j->arrived_complete;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        sum += j->ranks[rank].parked;
    return sum;
}

void job_count_initial(struct job *j, size_t bytes)
{
    j->totals.initial_rx_payload_bytes += bytes;
    if (++j->values_set == j->shard.length)
        j->parked_since_ns = 0;
}

static void park_reply(struct job_rank *r, int64_t now_ns)
{
    if (r->parked++ == 0)
        r->parked_since_ns = now_ns;
}

void job_count_push(struct job *j, unsigned rank, uint64_t round, size_t bytes, int64_t now_ns)
{
    struct job_rank *r = &j->ranks[rank];

    if (j->arrived++ == 0)
        j->current.begin_ns = now_ns;
    r->pushed++;
    r->pushes++;
    if (r->round != round)
        r->round_pushes = 0;
    r->round = round;
    r->round_pushes++;
    j->current.rx_payload_bytes += bytes;
    if (!job_is_lockstep(j))
        park_reply(r, now_ns);
}

static void queue_record(struct job *j)
{
    if (j->records_count == JOB_RECORDS) {
        j->totals.records_dropped++;
        return;
    }
    j->records[(j->records_first + j->records_count) % JOB_RECORDS] = j->current;
    j->records_count++;
}

static void end_round(struct job *j, int64_t now_ns)
{
    j->current.round = job_round(j);
    if (j->arrived == 0) /* several rounds end at once */
        j->current.begin_ns = now_ns;
    j->current.end_ns = now_ns;
    j->totals.rounds++;
    queue_record(j);
    add_round_to_totals(j);
    j->arrived = 0;
    j->completed = 0;
    j->arrived_complete = 0;
    j->paused_ns = 0;
}

void job_count_complete(struct job *j, const struct shard_reply *reply, int64_t now_ns)
{
    struct round_record *r = &j->current;
    unsigned contributions = reply->contributions, joined = j->members.joined;
    unsigned answered =
        contributions < joined ? contributions : joined; /* without ranks lost since */

    r->tx_payload_bytes +=
        reply->all_bytes > 0 ? reply->all_bytes : answered * (uint64_t)reply->bytes;
    r->sum_ns += reply->sum_ns;
    r->wait_ns += reply->wait_ns;
    stats_count_staleness(&j->totals.staleness, 0, contributions); /* all read round - 1 */
    j->arrived_complete += contributions;
    if (++j->completed < j->shard.length)
        return;
    end_round(j, now_ns);
    for (unsigned rank = 0; rank < j->members.world_size; rank++) {
        j->ranks[rank].pushed = 0;
        j->ranks[rank].took_vacant_rank = false;
    }
}

/* ------------------------------------------------------------------ not in lockstep */

/* Rounds in which every rank that is not finished has pushed all partitions. */
static uint64_t find_slowest_clock(const struct job *j)
{
    uint64_t slowest = UINT64_MAX;

    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        if (!j->ranks[rank].finished && j->ranks[rank].clock < slowest)
            slowest = j->ranks[rank].clock;
    return slowest;
}

/* A rank's clock has changed: end the rounds that the slowest rank has completed. */
static void end_rounds_of_slowest(struct job *j, int64_t now_ns)
{
    uint64_t slowest = find_slowest_clock(j);

    while (slowest != UINT64_MAX && j->totals.rounds < slowest)
        end_round(j, now_ns);
}

static void count_staleness(struct job *j, struct job_rank *r, const struct shard_reply *reply)
{
    j->missed_rules += reply->missed;
    if (!reply->late) {
        stats_count_staleness(&j->totals.staleness, reply->staleness, 1);
        stats_count_staleness(&r->staleness, reply->staleness, 1);
        return;
    }
    r->late++;
    j->totals.late_pushes++;
}

/* The rank has pushed all partitions of a round. */
static void end_rank_round(struct job *j, struct job_rank *r, int64_t now_ns)
{
    r->pushed = 0;
    if (!consistency_steps_per_push(&j->terms.consistency))
        return;
    r->clock++;
    end_rounds_of_slowest(j, now_ns);
}

void job_count_outcome(struct job *j, unsigned rank, const struct shard_reply *reply,
                       int64_t now_ns)
{
    struct job_rank *r = &j->ranks[rank];
    bool all_pushed = r->pushed == j->shard.length;

    count_staleness(j, r, reply);
    if (consistency_steps_per_push(&j->terms.consistency))
        j->current.sum_ns += reply->sum_ns;
    else if (reply->complete)
        job_count_complete_sum(j, reply, now_ns);
    if (all_pushed)
        end_rank_round(j, r, now_ns);
}

void job_count_retry(struct job *j, unsigned rank, bool is_push, int64_t now_ns)
{
    struct job_rank *r = &j->ranks[rank];

    j->totals.retries++;
    r->session.retries++;
    if (!is_push || !r->took_vacant_rank || r->pushed == j->shard.length)
        return;
    r->pushed++; /* the rank's earlier session pushed it; the new one counts it as its own */
    if (r->pushed == j->shard.length && !job_is_lockstep(j))
        end_rank_round(j, r, now_ns);
}

void job_count_complete_sum(struct job *j, const struct shard_reply *reply, int64_t now_ns)
{
    j->current.sum_ns += reply->sum_ns;
    j->current.wait_ns += reply->wait_ns;
    if (++j->completed == j->shard.length)
        end_round(j, now_ns);
}

void job_count_reply(struct job *j, unsigned rank, size_t bytes, bool is_final)
{
    if (is_final)
        j->totals.final_tx_payload_bytes += bytes;
    else
        j->current.tx_payload_bytes += bytes;
    if (j->ranks[rank].parked > 0)
        j->ranks[rank].parked--;
}

void job_count_park(struct job *j, unsigned rank, int64_t now_ns)
{
    park_reply(&j->ranks[rank], now_ns);
}

void job_count_unpark(struct job *j, unsigned rank)
{
    if (j->ranks[rank].parked > 0)
        j->ranks[rank].parked--;
}

void job_count_finish(struct job *j, unsigned rank, bool wants_final, int64_t now_ns)
{
    struct job_rank *r = &j->ranks[rank];

    if (wants_final)
        park_reply(r, now_ns);
    else
        r->parked = 0;
    if (r->finished)
        return;
    r->finished = true;
    if (consistency_steps_per_push(&j->terms.consistency))
        end_rounds_of_slowest(j, now_ns);
}

bool job_next_record(struct job *j, struct round_record *ret)
{
    if (j->records_count == 0)
        return false;
    *ret = j->records[j->records_first];
    j->records_first = (j->records_first + 1) % JOB_RECORDS;
    j->records_count--;
    return true;
}

bool job_is_unused(struct job *j)
{
    return j->users == 0 && atomic_load(&j->outstanding) == 0;
}
