/*
 * diagnosis: derives from the evidence how the run ended, which rank caused a failure and in which
 * operation, the first operation in which ranks differ, and who waited for whom.  The culprit comes
 * from a vote over the flight recorders.  Limit: the newest MATCHED_MAX operations of a rank.
 */
#include "experiments/inspect/diagnosis.h"

#include "common/base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MATCHED_MAX 4096

const char *flight_state_name(enum flight_state state)
{
    static const char *const names[] = {"empty", "queued", "running", "done", "failed"};

    return (unsigned)state < sizeof(names) / sizeof(names[0]) ? names[state] : "?";
}

/* ---- who ---- */

/* A loss without which the others went on is not what a job failed of later. */
enum losses { WITH_LOSSES, WITHOUT_LOSSES };

static bool is_lost(const struct evidence *e, int rank)
{
    return rank >= 0 && (size_t)rank < e->rank_count && e->ranks[rank].lost;
}

static bool names_culprit(const struct evidence *e, const struct evidence_rank *r,
                          enum losses losses)
{
    return r->has_flight && r->flight.fault != FAULT_NONE &&
           (losses == WITH_LOSSES || (!r->lost && !is_lost(e, r->flight.culprit)));
}

static bool same_view(const struct evidence_rank *a, const struct evidence_rank *b)
{
    return a->flight.fault == b->flight.fault && a->flight.culprit == b->flight.culprit;
}

/* The weight of a rank's view: first the number of ranks that share it; then a view that blames
 * another rank counts more than one that blames the rank itself. */
static size_t view_weight(const struct evidence *e, const struct evidence_rank *r,
                          enum losses losses)
{
    size_t votes = 0;

    for (size_t i = 0; i < e->rank_count; i++)
        votes += names_culprit(e, &e->ranks[i], losses) && same_view(&e->ranks[i], r);
    return 2 * votes + (r->flight.culprit >= 0 && r->flight.culprit != (int)r->rank);
}

static const struct evidence_rank *find_view(const struct evidence *e, enum losses losses)
{
    const struct evidence_rank *best = NULL;

    for (size_t i = 0; i < e->rank_count; i++)
        if (names_culprit(e, &e->ranks[i], losses) &&
            (!best || view_weight(e, &e->ranks[i], losses) > view_weight(e, best, losses)))
            best = &e->ranks[i];
    return best;
}

/* ---- how it ended ---- */

static bool ended_well(const struct evidence_rank *r)
{
    return strcmp(r->status, "ok") == 0;
}

static enum run_ending find_ending(const struct evidence *e)
{
    size_t good = 0;
    size_t cancelled = 0;
    size_t lost = 0; /* and did not end well all the same */

    for (size_t i = 0; i < e->rank_count; i++)
        if (ended_well(&e->ranks[i]))
            good++;
        else if (e->ranks[i].lost)
            lost++;
        else
            cancelled += strcmp(e->ranks[i].status, "CANCELLED") == 0;
    if (e->rank_count > 0 && good == e->rank_count)
        return ENDING_OK;
    if (e->is_live)
        return ENDING_RUNNING;
    if (good > 0 && good + lost == e->rank_count)
        return ENDING_SHRUNK;
    /* The other ranks may have been stopped because one failed. */
    return cancelled > 0 && cancelled + good + lost == e->rank_count &&
                   !find_view(e, WITHOUT_LOSSES)
               ? ENDING_CANCELLED
               : ENDING_FAILED;
}

/* The culprit when no recorder names one: the only rank that is gone without an end record. */
static int find_rank_without_end(const struct evidence *e)
{
    int candidate = -1;

    for (size_t i = 0; i < e->rank_count; i++) {
        const struct evidence_rank *r = &e->ranks[i];

        if (r->status[0] != '\0' || r->process == PROCESS_RUNS || r->process == PROCESS_STOPPED ||
            r->lost)
            continue;
        if (candidate >= 0)
            return -1;
        candidate = (int)i;
    }
    return candidate;
}

static void find_culprit(const struct evidence *e, struct diagnosis *d)
{
    const bool is_told = d->ending == ENDING_SHRUNK || d->ending == ENDING_RUNNING;
    const enum losses losses = is_told ? WITH_LOSSES : WITHOUT_LOSSES;
    const struct evidence_rank *view = find_view(e, losses);

    d->culprit = -1;
    d->reason = "";
    d->reason_rank = -1;
    if (view) {
        d->fault = view->flight.fault;
        d->culprit = view->flight.culprit;
        d->reason = view->flight.reason;
        d->reason_rank = (int)view->rank;
        for (size_t i = 0; i < e->rank_count; i++)
            d->disagreeing += names_culprit(e, &e->ranks[i], losses) &&
                              !same_view(&e->ranks[i], view) &&
                              e->ranks[i].flight.culprit != (int)e->ranks[i].rank;
    }
    for (size_t i = 0; d->reason_rank < 0 && i < e->rank_count; i++)
        if (e->ranks[i].error[0] != '\0' && strcmp(e->ranks[i].status, "CANCELLED") != 0 &&
            !(losses == WITHOUT_LOSSES && e->ranks[i].lost)) {
            d->reason = e->ranks[i].error;
            d->reason_rank = (int)i;
        }
    if (d->culprit < 0 && d->ending == ENDING_FAILED)
        d->culprit = find_rank_without_end(e);
    if (d->culprit >= (int)e->rank_count)
        d->culprit = -1;
}

/* ---- where ---- */

/* The first running operation, else the newest one. */
static const struct flight_entry *current_operation(const struct flight_log *log)
{
    for (size_t i = 0; i < log->length; i++)
        if (log->entries[i].state == FLIGHT_RUNNING)
            return &log->entries[i];
    return log->length > 0 ? &log->entries[log->length - 1] : NULL;
}

static bool has_newer_group(const struct flight_log *log, const struct flight_entry *entry)
{
    for (size_t i = 0; i < log->length; i++)
        if (log->entries[i].signature.group == entry->signature.group &&
            log->entries[i].signature.generation > entry->signature.generation)
            return true;
    return false;
}

const struct flight_entry *diagnosis_failed_operation(const struct evidence_rank *r,
                                                      enum run_ending ending)
{
    const bool skips_losses = ending == ENDING_FAILED;

    if (!r->has_flight || (skips_losses && r->lost))
        return NULL;
    for (size_t k = 0; k < r->flight.length; k++) {
        const struct flight_entry *entry = &r->flight.entries[k];

        if (entry->state == FLIGHT_FAILED && entry->started_ns != 0 &&
            !(skips_losses && has_newer_group(&r->flight, entry)))
            return entry; /* the operations queued after it failed with it */
    }
    return NULL;
}

static void find_operations(const struct evidence *e, struct diagnosis *d)
{
    for (size_t i = 0; i < e->rank_count; i++) {
        const struct flight_log *log = &e->ranks[i].flight;
        const struct flight_entry *entry;

        if (!e->ranks[i].has_flight)
            continue;
        if ((int)i == d->culprit)
            d->culprit_at = current_operation(log);
        entry = diagnosis_failed_operation(&e->ranks[i], d->ending);
        if (entry && (int)i != d->culprit) {
            const double seconds = (double)(entry->ended_ns - entry->started_ns) * 1e-9;

            d->failed_at = d->failed_at ? d->failed_at : entry;
            d->waited_seconds = seconds > d->waited_seconds ? seconds : d->waited_seconds;
        }
    }
}

/* ---- operations of several ranks ---- */

static bool is_collective(const struct flight_entry *entry)
{
    return entry->signature.call != COLLECTIVE_SEND && entry->signature.call != COLLECTIVE_RECV;
}

/* Only the newest operations are matched: a damaged file may claim a million. */
static size_t first_matched(const struct flight_log *log)
{
    return log->length > MATCHED_MAX ? log->length - MATCHED_MAX : 0;
}

/* The entry with the same group, generation and sequence.  Logs are in order, so the search begins
 * after the previous hit: *from. */
static const struct flight_entry *find_entry_like(const struct flight_log *log,
                                                  const struct flight_entry *wanted, size_t *from)
{
    const struct signature *s = &wanted->signature;
    size_t first = first_matched(log);
    size_t span = log->length - first;

    for (size_t i = 0; i < span; i++) {
        size_t at = first + (*from + i) % span;
        const struct signature *other = &log->entries[at].signature;

        if (is_collective(&log->entries[at]) && other->group == s->group &&
            other->generation == s->generation && other->sequence == s->sequence) {
            *from = at - first + 1;
            return &log->entries[at];
        }
    }
    return NULL;
}

static bool signatures_differ(const struct flight_entry *a, const struct flight_entry *b)
{
    return !signature_equal(&a->signature, &b->signature);
}

static const struct evidence_rank *first_recorder(const struct evidence *e)
{
    for (size_t i = 0; i < e->rank_count; i++)
        if (e->ranks[i].has_flight && !e->ranks[i].lost && e->ranks[i].flight.length > 0)
            return &e->ranks[i];
    return NULL;
}

static void find_difference(const struct evidence_rank *base, const struct evidence_rank *other,
                            struct difference *ret)
{
    size_t from = 0;

    for (size_t k = first_matched(&base->flight); k < base->flight.length; k++) {
        const struct flight_entry *mine = &base->flight.entries[k];
        const struct flight_entry *theirs;

        if (!is_collective(mine) || (ret->found && mine->index >= ret->entries[0].index))
            continue;
        theirs = find_entry_like(&other->flight, mine, &from);
        if (theirs && signatures_differ(mine, theirs)) {
            *ret = (struct difference){true, {base->rank, other->rank}, {*mine, *theirs}};
            return;
        }
    }
}

static void find_differences(const struct evidence *e, struct diagnosis *d)
{
    const struct evidence_rank *base = first_recorder(e);

    for (size_t i = 0; base && i < e->rank_count; i++)
        if (e->ranks[i].has_flight && &e->ranks[i] != base && e->ranks[i].flight.length > 0)
            find_difference(base, &e->ranks[i], &d->difference);
}

/* Add the waits of one operation of the base rank on all ranks that have a recorder. */
static void add_operation_waits(const struct evidence *e, const struct flight_entry *mine,
                                size_t *froms, double *starts, struct diagnosis *d)
{
    size_t last = 0;
    size_t count = 0;
    double latest = 0;

    for (size_t i = 0; i < e->rank_count; i++) {
        const struct flight_log *log = &e->ranks[i].flight;
        const struct flight_entry *entry;

        starts[i] = -1;
        if (!e->ranks[i].has_flight || e->ranks[i].lost)
            continue;
        entry = log->length > 0 ? find_entry_like(log, mine, &froms[i]) : NULL;
        if (!entry || entry->state != FLIGHT_DONE || entry->started_ns == 0)
            return;
        starts[i] = evidence_seconds(e, log, entry->started_ns);
        if (count++ == 0 || starts[i] > latest) {
            latest = starts[i];
            last = i;
        }
    }
    if (count < 2)
        return;
    d->matched++;
    d->waiting[last].last_count++;
    for (size_t i = 0; i < e->rank_count; i++) {
        double waited_ms = starts[i] < 0 ? 0 : (latest - starts[i]) * 1e3;

        d->waiting[i].waited_ms += waited_ms;
        d->waiting[last].caused_ms += waited_ms;
    }
}

static enum status compute_waiting(const struct evidence *e, struct diagnosis *d, struct error *err)
{
    const struct evidence_rank *base = first_recorder(e);
    size_t *froms = NULL;
    double *starts = NULL;
    enum status status =
        mem_calloc(e->rank_count, sizeof(*d->waiting), "waiting", &d->waiting, err);

    if (status == STATUS_OK)
        status = mem_calloc(e->rank_count, sizeof(*froms), "positions", &froms, err);
    if (status == STATUS_OK)
        status = mem_calloc(e->rank_count, sizeof(*starts), "starts", &starts, err);
    for (size_t k = base ? first_matched(&base->flight) : 0;
         status == STATUS_OK && base && k < base->flight.length; k++)
        if (is_collective(&base->flight.entries[k]))
            add_operation_waits(e, &base->flight.entries[k], froms, starts, d);
    free(froms);
    free(starts);
    return status;
}

enum status diagnosis_make(const struct evidence *e, struct diagnosis *ret, struct error *err)
{
    struct diagnosis d = {.ending = find_ending(e)};
    enum status status;

    find_culprit(e, &d);
    find_operations(e, &d);
    find_differences(e, &d);
    status = compute_waiting(e, &d, err);
    if (status != STATUS_OK) {
        diagnosis_release(&d);
        return status;
    }
    *ret = d;
    return STATUS_OK;
}

void diagnosis_release(struct diagnosis *d)
{
    if (!d)
        return;
    free(d->waiting);
    *d = (struct diagnosis){0};
}

/* ---- words ---- */

static void bytes_text(uint64_t done, uint64_t total, char *text, size_t size)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB"};
    double unit = 1;
    unsigned index = 0;

    while ((double)total / unit >= 1000 && index < 4) {
        unit *= 1000;
        index++;
    }
    (void)snprintf(text, size, "%.*f of %.*f %s", index > 0, (double)done / unit, index > 0,
                   (double)total / unit, units[index]);
}

/* "all_reduce #812 (bucket 2 of 5, 1.2 of 26.2 MB)", without unknown parts. */
static void operation_text(const struct flight_entry *entry, char *text, size_t size)
{
    char bucket[48] = "";
    char bytes[64] = "";

    if (entry->bucket > 0)
        (void)snprintf(bucket, sizeof(bucket), "bucket %" PRId32 " of %" PRId32, entry->bucket,
                       entry->buckets);
    if (entry->total_bytes > 0 && entry->state != FLIGHT_DONE)
        bytes_text(entry->done_bytes, entry->total_bytes, bytes, sizeof(bytes));
    (void)snprintf(text, size, "%s #%" PRIu64 "%s%s%s%s%s",
                   collective_call_name(entry->signature.call), entry->signature.sequence,
                   bucket[0] || bytes[0] ? " (" : "", bucket, bucket[0] && bytes[0] ? ", " : "",
                   bytes, bucket[0] || bytes[0] ? ")" : "");
}

static const char *fault_verb(enum fault fault)
{
    static const char *const verbs[FAULT_COUNT] = {
        [FAULT_NONE] = "is gone without a word",
        [FAULT_DEAD] = "died",
        [FAULT_STOPPED] = "was stopped",
        [FAULT_STALLED] = "ran, but did not come",
        [FAULT_SLOW] = "was too slow",
        [FAULT_DESYNC] = "was in another operation",
        [FAULT_NETWORK] = "could not be reached any more",
        [FAULT_FINISHED] = "had left the group",
        [FAULT_EXCLUDED] = "was left behind",
        [FAULT_FAILED] = "failed",
    };

    return verbs[(unsigned)fault < FAULT_COUNT ? fault : FAULT_NONE];
}

/* " in all_reduce #812 (...)", " before all_reduce #812 (...)" or "". */
static void culprit_operation_text(const struct diagnosis *d, char *text, size_t size)
{
    const struct flight_entry *at = d->culprit_at;
    const char *where = "in";
    char operation[160];

    text[0] = '\0';
    if (d->fault == FAULT_STALLED) {
        where = "to";
        at = d->failed_at ? d->failed_at : at;
    } else if (at && at->state == FLIGHT_DONE && d->failed_at) {
        where = "before";
        at = d->failed_at;
    } else if (at && at->state == FLIGHT_DONE) {
        where = "after";
    } else if (!at) {
        at = d->failed_at;
        where = "when the others were in";
    }
    if (!at)
        return;
    operation_text(at, operation, sizeof(operation));
    (void)snprintf(text, size, " %s %s", where, operation);
}

void diagnosis_sentence(const struct diagnosis *d, char *text, size_t size)
{
    char operation[256];

    culprit_operation_text(d, operation, sizeof(operation));
    if (d->culprit >= 0)
        (void)snprintf(text, size, "rank %d %s%s", d->culprit, fault_verb(d->fault), operation);
    else if (d->fault != FAULT_NONE)
        (void)snprintf(text, size, "a rank %s%s", fault_verb(d->fault), operation);
    else
        (void)snprintf(text, size, "no recorder names a rank");
}
