/*
 * Agreement on the last update through the store, under "stop/<recoveries>/":
 *   end          the updates of the whole run, as decimal text, from rank 0
 *   done/<rank>  that rank has the last update; rank 0 also has saved
 * Errors of the store are logged, not returned: a rank that cannot agree ends on its own.
 */
#include "worker/train/stopping.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "worker/train/trainer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ABSENT            "none" /* not a number: never stored */
#define AGREEMENT_MS      1000
#define AGREEMENT_UPDATES 3
#define UNAGREED_MS       10000 /* for rank 0's save without a decision; as a wait in a step (stop.h) */
#define CHECK_MS          1000 /* between checks whether rank 0 has failed */
#define KEY_SIZE          48

static bool is_saved(const struct trainer *t)
{
    return t->store && t->options->checkpoint_dir[0] != '\0';
}

/* No rank completes an update without rank 0. */
static bool is_lockstep(const struct trainer *t)
{
    return strcmp(t->options->sync, "allreduce") == 0 ||
           (strcmp(t->options->sync, "ps") == 0 && consistency_is_lockstep(&t->consistency));
}

/* The number of recoveries is part of the key: a decision of a lost rank 0 does not bind the next
 * one. */
static void make_end_key(const struct trainer *t, char key[KEY_SIZE])
{
    (void)snprintf(key, KEY_SIZE, "stop/%ju/end", (uintmax_t)t->recovery.count);
}

static void make_done_key(const struct trainer *t, unsigned rank, char key[KEY_SIZE])
{
    (void)snprintf(key, KEY_SIZE, "stop/%ju/done/%u", (uintmax_t)t->recovery.count, rank);
}

/* Rank 0.  If the store fails, it ends now, as if it were alone. */
static void decide_end(struct trainer *t, uint64_t completed)
{
    struct stopping *s = &t->stopping;
    struct error why = {0};
    char key[KEY_SIZE];
    char text[32];

    make_end_key(t, key);
    s->agreed = true;
    s->end = is_lockstep(t) ? completed + 1 : completed;
    (void)snprintf(text, sizeof(text), "%" PRIu64, s->end);
    if (store_set(t->store, key, text, strlen(text), &why) != STATUS_OK) {
        log_debug("cannot publish the last update: %s", why.text);
        s->end = completed;
    }
}

/* Does not wait: compare_set of a missing key stores nothing and returns ABSENT. */
static void read_end(struct trainer *t)
{
    struct stopping *s = &t->stopping;
    struct error why = {0};
    char key[KEY_SIZE];
    char *text = NULL;

    make_end_key(t, key);
    if (store_compare_set(t->store, key, ABSENT, ABSENT, &text, &why) != STATUS_OK)
        return;
    s->agreed = parse_uint64(text, &s->end);
    free(text);
}

bool stopping_is_due(struct trainer *t, uint64_t completed)
{
    struct stopping *s = &t->stopping;

    if (!stop_requested())
        return false;
    if (!s->requested) {
        s->requested = true;
        s->decision_deadline_ns = clock_deadline_ns(AGREEMENT_MS);
        s->requested_completed = completed;
    }
    if (!is_saved(t))
        return true;
    if (!s->agreed && t->rank == 0)
        decide_end(t, completed);
    else if (!s->agreed)
        read_end(t);
    if (s->agreed) /* out of lockstep a rank may be far from rank 0, which does not need it */
        return !is_lockstep(t) || completed >= s->end;
    return completed - s->requested_completed >= AGREEMENT_UPDATES &&
           clock_now_ns() >= s->decision_deadline_ns;
}

uint64_t stopping_complete_update(struct trainer *t, uint64_t completed)
{
    const struct stopping *s = &t->stopping;
    struct error why = {0};

    if (!s->agreed || !is_lockstep(t))
        return completed;
    if (completed > s->end)
        return s->end;
    if (overlap_wait(t, &why) != STATUS_OK)
        log_debug("the last update may be incomplete: %s", why.text);
    return completed;
}

static enum status await_done(struct trainer *t, unsigned rank, int64_t timeout_ms,
                              struct error *err)
{
    char key[KEY_SIZE];

    make_done_key(t, rank, key);
    return store_wait(t->store, (const char *const[]){key}, 1, timeout_ms, err);
}

static void await_rank_0(struct trainer *t)
{
    int64_t deadline_ns =
        clock_deadline_ns(t->stopping.agreed ? t->options->timeout_ms : UNAGREED_MS);
    struct error why = {0};
    enum status status;

    do
        status = await_done(t, 0, CHECK_MS, &why);
    while (status == STATUS_TIMEOUT && clock_now_ns() < deadline_ns &&
           !store_find_failure(t->store, 0, &why));
    if (status != STATUS_OK)
        log_debug("rank 0 has not confirmed that the run is saved: %s", why.text);
}

static void await_others(struct trainer *t)
{
    int64_t deadline_ns = clock_deadline_ns(AGREEMENT_MS);
    struct error why = {0};
    enum status status = STATUS_OK;

    for (unsigned rank = 1; rank < t->world_size && status == STATUS_OK; rank++)
        if (rank != t->rank)
            status = await_done(t, rank, clock_left_ms(deadline_ns), &why);
    if (status != STATUS_OK)
        log_debug("leaves before all ranks have the last update: %s", why.text);
}

void stopping_leave(struct trainer *t)
{
    struct error why = {0};
    char key[KEY_SIZE];

    if (!t->stopping.agreed && (is_lockstep(t) || !is_saved(t)))
        return;
    make_done_key(t, t->rank, key);
    if (store_set(t->store, key, "1", 1, &why) != STATUS_OK)
        log_debug("cannot publish the end of this rank: %s", why.text);
    if (t->rank != 0)
        await_rank_0(t);
    if (is_lockstep(t))
        await_others(t);
}
