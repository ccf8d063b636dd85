/*
 * The book-keeping of one job.  Rounds need no table: a rank begins round t + 1 only after it has
 * all of round t from every server, so on one server the contributions of two rounds never mix and
 * one set of counters describes the round under way.
 */
#include "server/job.h"

#include "common/base/host.h"
#include "common/base/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum status job_open(const struct join_request *request, struct job **ret_job, struct error *err)
{
    struct job *j;
    enum status status = mem_calloc(1, sizeof(*j), "job", &j, err);

    if (status != STATUS_OK)
        return status;
    j->terms = *request;
    j->terms.manifest = NULL;
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
    shard_release(&j->shard);
    shard_map_release(&j->map);
    membership_release(&j->members);
    free(j->ranks);
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
                                  .optimizer = t->optimizer};
    enum status status = membership_compare(&j->members, err);

    if (status == STATUS_OK)
        status =
            shard_map_make(t->element_count, t->partition_bytes, t->server_count, &j->map, err);
    if (status == STATUS_OK)
        status = shard_init(&j->shard, &config, err);
    return status;
}

void job_run(struct job *j, int64_t now_ns)
{
    j->state = JOB_RUNNING;
    j->cpu_seconds_before = host_cpu_seconds();
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        j->ranks[rank].heard_ns = now_ns;
}

bool job_end(struct job *j, const struct error *failure, int64_t now_ns)
{
    if (j->state == JOB_OVER)
        return false;
    j->state = JOB_OVER;
    j->over_ns = now_ns;
    if (failure)
        j->failure = *failure;
    return true;
}

uint64_t job_round(const struct job *j)
{
    return j->totals.rounds + 1;
}

bool job_is_pending(const struct job *j)
{
    return j->arrived > 0;
}

void job_count_initial(struct job *j, size_t bytes)
{
    j->totals.initial_rx_payload_bytes += bytes;
    if (++j->values_set == j->shard.length)
        j->parked_since_ns = 0;
}

void job_count_push(struct job *j, unsigned rank, size_t bytes, int64_t now_ns)
{
    if (j->arrived++ == 0)
        j->current = (struct round_record){.round = job_round(j), .begin_ns = now_ns};
    j->ranks[rank].pushed++;
    j->ranks[rank].pushes++;
    j->current.rx_payload_bytes += bytes;
}

static void keep_record(struct job *j)
{
    if (j->records_count == JOB_RECORDS) {
        j->totals.unrecorded++;
        return;
    }
    j->records[(j->records_first + j->records_count) % JOB_RECORDS] = j->current;
    j->records_count++;
}

void job_count_complete(struct job *j, const struct shard_answer *answer, int64_t now_ns)
{
    struct round_record *r = &j->current;

    r->tx_payload_bytes += (uint64_t)j->members.world_size * answer->count * sizeof(float);
    r->sum_ns += answer->sum_ns;
    r->wait_ns += answer->wait_ns;
    stats_count_staleness(&j->totals.staleness, 0, j->members.world_size); /* all read round - 1 */
    if (++j->completed < j->shard.length)
        return;
    r->end_ns = now_ns;
    j->totals.rounds++;
    j->totals.rx_payload_bytes += r->rx_payload_bytes;
    j->totals.tx_payload_bytes += r->tx_payload_bytes;
    j->totals.sum_ns += r->sum_ns;
    j->totals.wait_ns += r->wait_ns;
    keep_record(j);
    j->arrived = 0;
    j->completed = 0;
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        j->ranks[rank].pushed = 0;
}

/* What job_has_stalled asks of each rank. */
struct silence {
    const struct job *job;
    int64_t before_ns; /* heard last at or before this moment: silent */
    bool waiting;      /* somebody waits since then */
};

static bool is_missing(const void *user, unsigned rank)
{
    const struct silence *s = user;
    const struct job_rank *r = &s->job->ranks[rank];

    if (r->heard_ns > s->before_ns || s->job->members.members[rank].state == MEMBER_LEFT)
        return false;
    if (!r->has_streamed)
        return true;
    if (s->job->arrived == 0) /* round 0: rank 0's values are awaited */
        return s->waiting && rank == 0;
    return s->waiting && r->pushed < s->job->shard.length;
}

bool job_has_stalled(const struct job *j, int64_t now_ns, int64_t timeout_ms, struct error *err)
{
    int64_t since_ns = j->arrived > 0 ? j->current.begin_ns : j->parked_since_ns;
    struct silence silence = {.job = j, .before_ns = now_ns - timeout_ms * 1000000};
    struct strbuf ranks = STRBUF_INIT;
    unsigned missing;

    if (j->state != JOB_RUNNING)
        return false;
    silence.waiting = since_ns != 0 && since_ns <= silence.before_ns;
    missing = membership_list(&j->members, is_missing, &silence, &ranks);
    if (missing > 0)
        (void)error_set(err, STATUS_TIMEOUT,
                        "waited in round %" PRIu64 " for rank%s %s: nothing came for %.1f s",
                        j->values_set < j->shard.length ? 0 : job_round(j), missing == 1 ? "" : "s",
                        ranks.text, (double)timeout_ms * 1e-3);
    strbuf_release(&ranks);
    return missing > 0;
}

bool job_join_expired(const struct job *j, int64_t now_ns, struct error *err)
{
    struct strbuf missing = STRBUF_INIT;
    bool expired = false;

    for (unsigned rank = 0; j->state == JOB_GATHERING && rank < j->members.world_size; rank++)
        expired = expired || (j->ranks[rank].join && j->ranks[rank].join_deadline_ns <= now_ns);
    if (!expired)
        return false;
    membership_list_missing(&j->members, &missing);
    (void)error_set(err, STATUS_TIMEOUT, "the join of job '%s' waited in vain for %s",
                    j->members.job, missing.text);
    strbuf_release(&missing);
    return true;
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
