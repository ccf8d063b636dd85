/*
 * job_table: ends jobs, keeps those that are over until they can be freed, and sums their counters.
 *
 * A job ends in two steps: job_table_begin_end changes it under the lock; job_table_finish_end
 * calls the hooks and ends the ranks' calls without the lock, because both may block or call back.
 */
#include "server/job/job_table.h"

#include "common/base/clock.h"
#include "common/base/condition.h"
#include "common/base/log.h"

#include <string.h>

void job_table_init(struct job_table *t)
{
    (void)pthread_mutex_init(&t->lock, NULL);
    condition_init(&t->changed);
}

void job_table_release(struct job_table *t)
{
    (void)pthread_cond_destroy(&t->changed);
    (void)pthread_mutex_destroy(&t->lock);
}

void job_table_drain(struct job_table *t)
{
    (void)pthread_mutex_lock(&t->lock);
    t->draining = true;
    t->drain_begin_ns = clock_now_ns();
    t->drain_deadline_ns = clock_deadline_ns(t->timeout_ms);
    (void)pthread_cond_broadcast(&t->changed);
    while (t->current)
        (void)pthread_cond_wait(&t->changed, &t->lock);
    (void)pthread_mutex_unlock(&t->lock);
}

/* Append the job to the list of jobs that are over.  Lock held. */
static void move_to_over(struct job_table *t, struct job *j)
{
    struct job **link = &t->over;

    if (t->current == j)
        t->current = NULL;
    while (*link)
        link = &(*link)->next;
    *link = j;
    (void)pthread_cond_broadcast(&t->changed);
}

bool job_table_begin_end(struct job_table *t, struct job *j, const struct error *failure)
{
    bool first = job_end(j, failure, clock_now_ns());

    if (first) {
        j->users++; /* until job_table_finish_end, so that the supervisor does not free it */
        job_table_add_counters(t, j, &t->past);
        t->jobs_ok += failure == NULL;
        t->jobs_failed += failure != NULL;
        memcpy(t->last_job, j->members.job, sizeof(t->last_job));
        t->last_failure = j->failure;
        move_to_over(t, j);
    }
    return first;
}

void job_table_finish_end(struct job_table *t, struct job *j, const struct error *failure)
{
    if (failure)
        log_warning("job '%s' ended: %s", j->members.job, failure->text);
    else
        log_info("job '%s' is done", j->members.job);
    t->hooks.ended(t->hooks.user, j, failure);
    for (unsigned rank = 0; failure && rank < j->members.world_size; rank++) {
        struct rpc_call *calls[JOB_CALLS_MAX];
        size_t count;

        (void)pthread_mutex_lock(&t->lock);
        count = job_ref_calls(j, rank, calls);
        (void)pthread_mutex_unlock(&t->lock);
        for (size_t i = 0; i < count; i++) {
            rpc_call_finish(calls[i], failure->status, failure->text);
            rpc_call_unref(calls[i]);
        }
    }
    job_table_unref(t, j);
}

void job_table_end(struct job_table *t, struct job *j, const struct error *failure)
{
    bool first;

    (void)pthread_mutex_lock(&t->lock);
    first = job_table_begin_end(t, j, failure);
    (void)pthread_mutex_unlock(&t->lock);
    if (first)
        job_table_finish_end(t, j, failure);
}

void job_table_end_if_empty(struct job_table *t, struct job *j, const struct error *failure)
{
    bool first;

    (void)pthread_mutex_lock(&t->lock);
    first =
        !(j->state == JOB_GATHERING && j->members.joined > 0) && job_table_begin_end(t, j, failure);
    (void)pthread_mutex_unlock(&t->lock);
    if (first)
        job_table_finish_end(t, j, failure);
}

void job_table_free(struct job_table *t, struct job *j)
{
    if (!j)
        return;
    t->hooks.release(t->hooks.user, j);
    job_close(j);
}

void job_table_unref(struct job_table *t, struct job *j)
{
    (void)pthread_mutex_lock(&t->lock);
    j->users--;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->lock);
}

enum status job_table_persist_members(struct job_table *t, struct job *j, struct error *err)
{
    struct error why = {0};
    enum status status = t->hooks.persist_members(t->hooks.user, j, err ? err : &why);

    if (status != STATUS_OK && !err)
        log_warning("job '%s': %s", j->members.job, why.text);
    return status;
}

/* ------------------------------------------------------------------ counters */

static void add_counters(const struct stats_counters *of, struct stats_counters *sum)
{
#define X(field, help) sum->field += of->field;
    STATS_COUNTERS(X)
#undef X
#define X(name, help) sum->name##_ns += of->name##_ns;
    STATS_TIMES(X)
#undef X
    for (size_t i = 0; i <= STATS_STALENESS_BOUNDS; i++)
        sum->staleness.counts[i] += of->staleness.counts[i];
    sum->staleness.sum += of->staleness.sum;
}

void job_table_count(struct job_table *t, const struct job *j, struct job_figures *ret)
{
    *ret = (struct job_figures){0};
    (void)pthread_mutex_lock(&t->lock);
    t->hooks.count(t->hooks.user, j, ret);
    (void)pthread_mutex_unlock(&t->lock);
}

void job_table_add_counters(struct job_table *t, const struct job *j, struct stats_counters *sum)
{
    struct job_figures figures = {0};

    t->hooks.count(t->hooks.user, j, &figures);
    add_counters(&figures.counters, sum);
    add_counters(&j->totals, sum);
    for (unsigned rank = 0; rank < j->members.world_size; rank++)
        sum->pushes += j->ranks[rank].pushes;
    sum->rx_payload_bytes += j->current.rx_payload_bytes;
    sum->tx_payload_bytes += j->current.tx_payload_bytes;
    sum->sum_ns += j->current.sum_ns;
    sum->wait_ns += j->current.wait_ns;
}
