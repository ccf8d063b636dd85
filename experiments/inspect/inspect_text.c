/*
 * inspect_text: the text of `sparring inspect`, in this order: configuration, ending, divergence,
 * first differing operation, ranks, critical path, recoveries, buckets, other records, waiting,
 * last operations, problems.
 */
#include "experiments/inspect/inspect.h"

#include "experiments/report/json_fields.h"
#include "experiments/report/report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *member_text(const json_t *object, const char *name, char *text, size_t size)
{
    const json_t *value = json_object_get(object, name);

    text[0] = '\0';
    if (value)
        (void)json_scalar_text(value, text, size);
    return text;
}

/* ---- what was it ---- */

static void add_heading(const struct evidence *e, struct strbuf *out)
{
    const json_t *host = json_object_get(e->manifest, "host");
    char a[256];
    char b[256];
    char c[256];
    char line[1024];

    if (!e->manifest) {
        strbuf_addf(out, "%s: a run of %u ranks\n", e->path, e->world_size);
        return;
    }
    evidence_option(e, "model", a, sizeof(a));
    evidence_option(e, "data", b, sizeof(b));
    evidence_option(e, "batch-size", c, sizeof(c));
    (void)snprintf(line, sizeof(line), "%.200s: %.200s on %.200s, batch %.20s, %u rank%s,",
                   member_text(e->manifest, "run", (char[256]){0}, 256), a, b, c, e->world_size,
                   e->world_size == 1 ? "" : "s");
    evidence_option(e, "sync", a, sizeof(a));
    evidence_option(e, "backend", b, sizeof(b));
    (void)snprintf(line + strlen(line), sizeof(line) - strlen(line), " %.60s%s%.60s%s", a,
                   strcmp(a, "allreduce") == 0 ? " (" : "", strcmp(a, "allreduce") == 0 ? b : "",
                   strcmp(a, "allreduce") == 0 ? ")" : "");
    report_add_wrapped(out, line, 0);
    (void)snprintf(line, sizeof(line), "started %.40s on %.100s, %.60s (%.60s)",
                   member_text(e->manifest, "start", a, sizeof(a)),
                   member_text(host, "name", b, sizeof(b)),
                   member_text(e->manifest, "program", c, sizeof(c)),
                   member_text(e->manifest, "git", (char[128]){0}, 128));
    report_add_wrapped(out, line, 0);
}

/* ---- how did it end ---- */

/* "0, 1 and 3": the ranks for which `is` holds; returns how many they are. */
static size_t list_ranks(const struct evidence *e, const struct diagnosis *d,
                         bool (*is)(const struct evidence_rank *, const struct diagnosis *),
                         char *text, size_t size)
{
    size_t total = 0;
    size_t listed = 0;
    size_t used = 0;

    for (size_t i = 0; i < e->rank_count; i++)
        total += is(&e->ranks[i], d);
    text[0] = '\0';
    for (size_t i = 0; i < e->rank_count && used < size; i++)
        if (is(&e->ranks[i], d)) {
            used += (size_t)snprintf(text + used, size - used, "%s%u",
                                     listed == 0          ? ""
                                     : listed + 1 < total ? ", "
                                                          : " and ",
                                     e->ranks[i].rank);
            listed++;
        }
    return total;
}

static bool waited_for_culprit(const struct evidence_rank *r, const struct diagnosis *d)
{
    return (int)r->rank != d->culprit && diagnosis_failed_operation(r, d->ending);
}

static bool is_lost(const struct evidence_rank *r, const struct diagnosis *d)
{
    (void)d;
    return r->lost;
}

static void add_blame(const struct evidence *e, const struct diagnosis *d, struct strbuf *out)
{
    char sentence[512];
    char ranks[200];
    char line[2048];
    size_t count = list_ranks(e, d, waited_for_culprit, ranks, sizeof(ranks));

    diagnosis_sentence(d, sentence, sizeof(sentence));
    (void)snprintf(line, sizeof(line), "%s: %s", d->ending == ENDING_FAILED ? "FAILED" : "loss",
                   sentence);
    if (count > 0)
        (void)snprintf(line + strlen(line), sizeof(line) - strlen(line),
                       "; rank%s %s waited %.*f s", count == 1 ? "" : "s", ranks,
                       d->waited_seconds < 1 ? 3 : 1, d->waited_seconds);
    (void)snprintf(line + strlen(line), sizeof(line) - strlen(line), ".");
    report_add_wrapped(out, line, 0);
    if (d->reason[0] != '\0') {
        (void)snprintf(line, sizeof(line), "rank %d: %s", d->reason_rank, d->reason);
        report_add_wrapped(out, line, 2);
    }
    if (d->disagreeing > 0)
        strbuf_addf(out, "  %u rank%s another culprit; see --json.\n", d->disagreeing,
                    d->disagreeing == 1 ? " names" : "s name");
}

static void add_ending(const struct evidence *e, const struct diagnosis *d, struct strbuf *out)
{
    char text[256];
    char line[512];

    switch (d->ending) {
    case ENDING_OK:
        strbuf_addf(out, "ok: all %zu ranks ended well", e->rank_count);
        if (json_object_get(e->summary, "samples_per_second"))
            strbuf_addf(out, "; %s updates, %.0f samples/s, last loss %.4g",
                        member_text(e->summary, "steps", text, sizeof(text)),
                        json_number_value(json_object_get(e->summary, "samples_per_second")),
                        json_number_value(json_object_get(e->summary, "last_loss")));
        strbuf_add(out, ".\n");
        break;
    case ENDING_SHRUNK:
        (void)list_ranks(e, d, is_lost, text, sizeof(text));
        (void)snprintf(line, sizeof(line), "ok after a loss: without rank %s the others went on.",
                       text);
        report_add_wrapped(out, line, 0);
        break;
    case ENDING_RUNNING:
        strbuf_add(out, "running.\n");
        if (d->fault != FAULT_NONE)
            add_blame(e, d, out);
        break;
    case ENDING_CANCELLED:
        strbuf_add(out, "stopped: a signal ended it.\n");
        break;
    case ENDING_FAILED:
        add_blame(e, d, out);
        break;
    }
}

/* After all-reduce, all ranks must end with bitwise equal parameters. */
static void add_divergence(const struct evidence *e, struct strbuf *out)
{
    const struct evidence_rank *first = NULL;
    char sync[64];

    evidence_option(e, "sync", sync, sizeof(sync));
    for (size_t i = 0; i < e->rank_count && strcmp(sync, "allreduce") == 0; i++) {
        const struct evidence_rank *r = &e->ranks[i];

        if (r->parameters_hash[0] == '\0')
            continue;
        if (first && strcmp(first->parameters_hash, r->parameters_hash) != 0)
            strbuf_addf(out, "Ranks %u and %u ended with different parameters.\n", first->rank,
                        r->rank);
        first = first ? first : r;
    }
}

static void add_difference(const struct diagnosis *d, struct strbuf *out)
{
    char text[COLLECTIVE_TEXT_SIZE];

    if (!d->difference.found)
        return;
    strbuf_addf(out, "\nFirst operation in which ranks differ (group '%s'):\n",
                d->difference.entries[0].group);
    for (unsigned i = 0; i < 2; i++) {
        signature_text(&d->difference.entries[i].signature, text);
        strbuf_addf(out, "  rank %u: %s, step %" PRIu64 "\n", d->difference.ranks[i], text,
                    d->difference.entries[i].step);
    }
}

/* ---- ranks ---- */

static const char *rank_state(const struct evidence_rank *r)
{
    if (r->status[0] != '\0')
        return r->status;
    switch (r->process) {
    case PROCESS_RUNS:
        return "running";
    case PROCESS_STOPPED:
        return "stopped";
    case PROCESS_GONE:
        return "gone";
    default:
        return "no end";
    }
}

static void add_ranks(const struct evidence *e, struct strbuf *out)
{
    strbuf_add(out, "\nrank     pid  state         updates     loss  step ms  compute  exposed\n");
    for (size_t i = 0; i < e->rank_count; i++) {
        const struct evidence_rank *r = &e->ranks[i];

        strbuf_addf(out, "%4u %7" PRId64 "  %-12.12s %8zu ", r->rank, r->pid, rank_state(r),
                    r->steps);
        if (r->steps > 0)
            strbuf_addf(out, "%8.4f %8.3f %8.3f %8.3f\n", r->last_loss, r->step_ms, r->compute_ms,
                        r->exposed_comm_ms);
        else
            strbuf_add(out, "       -        -        -        -\n");
    }
}

static void add_critical_path(const struct critical_path *p, struct strbuf *out)
{
    struct strbuf line = STRBUF_INIT;

    if (p->steps == 0)
        return;
    strbuf_add(&line, "Critical path of a step: ");
    critical_path_describe(p, &line);
    strbuf_add(out, "\n");
    report_add_wrapped(out, strbuf_ok(&line) ? line.text : "", 0);
    strbuf_release(&line);
}

/* ---- recoveries, buckets and other records ---- */

static const struct evidence_rank *rank_with_most_recoveries(const struct evidence *e)
{
    const struct evidence_rank *best = NULL;

    for (size_t i = 0; i < e->rank_count; i++)
        if (!best || json_array_size(e->ranks[i].recoveries) > json_array_size(best->recoveries))
            best = &e->ranks[i];
    return best;
}

static void add_recoveries(const struct evidence *e, struct strbuf *out)
{
    const json_t *list = rank_with_most_recoveries(e)->recoveries;
    size_t index;
    json_t *record;

    if (json_array_size(list) == 0)
        return;
    strbuf_add(out, "\nrecovered at  lost ranks   fault       left  detect ms  resume ms  "
                    "samples lost\n");
    json_array_foreach(list, index, record)
    {
        char step[24];
        char lost[128];
        char fault[32];

        strbuf_addf(out, "step %-8.8s %-12.12s %-10.10s %5jd %10.1f %10.1f %13jd\n",
                    member_text(record, "step", step, sizeof(step)),
                    member_text(record, "lost_ranks", lost, sizeof(lost)),
                    member_text(record, "fault", fault, sizeof(fault)),
                    (intmax_t)json_integer_value(json_object_get(record, "world_size")),
                    json_number_value(json_object_get(record, "detect_seconds")) * 1e3,
                    json_number_value(json_object_get(record, "resume_seconds")) * 1e3,
                    (intmax_t)json_integer_value(json_object_get(record, "samples_lost")));
    }
}

static double ms_at(const json_t *record, const char *name)
{
    return json_number_value(json_object_get(record, name)) * 1e-6;
}

/* The part of each bucket's reduction before the end of backward, on the first rank with bucket
 * records. */
static void add_buckets(const struct evidence *e, struct strbuf *out)
{
    const struct evidence_rank *r = NULL;
    double hidden_ms = 0;
    double total_ms = 0;
    size_t index;
    json_t *record;

    for (size_t i = 0; i < e->rank_count && !r; i++)
        r = json_array_size(e->ranks[i].buckets) > 0 ? &e->ranks[i] : NULL;
    if (!r)
        return;
    strbuf_addf(
        out,
        "\nBuckets of step %jd on rank %u (ms since the begin of the step):\n"
        "bucket       bytes    ready    start     done  hidden behind backward\n",
        (intmax_t)json_integer_value(json_object_get(json_array_get(r->buckets, 0), "step")),
        r->rank);
    json_array_foreach(r->buckets, index, record)
    {
        double start = ms_at(record, "start_ns");
        double done = ms_at(record, "done_ns");
        double computed = ms_at(record, "computed_ns");
        double end = done < computed ? done : computed;
        double hidden = end > start ? end - start : 0;

        hidden_ms += hidden;
        total_ms += done - start;
        strbuf_addf(out, "%6jd %11jd %8.3f %8.3f %8.3f %10.3f (%.0f %%)\n",
                    (intmax_t)json_integer_value(json_object_get(record, "bucket")),
                    (intmax_t)json_integer_value(json_object_get(record, "bytes")),
                    ms_at(record, "ready_ns"), start, done, hidden,
                    done > start ? 100 * hidden / (done - start) : 0);
    }
    strbuf_addf(out, "In all %.3f of %.3f ms of communication hidden.\n", hidden_ms, total_ms);
}

/* A record of a kind that has no table of its own, member by member. */
static void add_other(const char *kind, const json_t *record, struct strbuf *out)
{
    struct strbuf line = STRBUF_INIT;
    const char *name;
    const json_t *value;
    void *iterator;

    for (iterator = json_object_iter((json_t *)(uintptr_t)record); iterator;
         iterator = json_object_iter_next((json_t *)(uintptr_t)record, iterator)) {
        char text[128];

        name = json_object_iter_key(iterator);
        value = json_object_iter_value(iterator);
        if (strcmp(name, "kind") != 0 && json_scalar_text(value, text, sizeof(text)))
            strbuf_addf(&line, "%s%s %s", line.length > 0 ? ", " : "", name, text);
    }
    strbuf_addf(out, "\n%s:\n", kind);
    report_add_wrapped(out, line.text, 2);
    strbuf_release(&line);
}

static void add_others(const struct evidence *e, struct strbuf *out)
{
    for (size_t i = 0; i < e->rank_count; i++) {
        const char *kind;
        json_t *record;

        if (json_object_size(e->ranks[i].others) == 0)
            continue;
        json_object_foreach(e->ranks[i].others, kind, record) add_other(kind, record, out);
        return; /* except for times they are the same on all ranks */
    }
}

/* ---- who waited for whom ---- */

static void add_waiting(const struct evidence *e, const struct diagnosis *d, struct strbuf *out)
{
    size_t worst = 0;
    double total_ms = 0;

    if (d->matched == 0)
        return;
    for (size_t i = 0; i < e->rank_count; i++) {
        worst = d->waiting[i].caused_ms > d->waiting[worst].caused_ms ? i : worst;
        total_ms += d->waiting[i].caused_ms;
    }
    strbuf_addf(out,
                "\nWho came last, in the newest %zu operations that all ranks ended:\n"
                "rank  waited ms  was last in  made the others wait ms\n",
                d->matched);
    for (size_t i = 0; i < e->rank_count; i++)
        if (e->ranks[i].has_flight)
            strbuf_addf(out, "%4zu %10.2f %12zu %24.2f\n", i, d->waiting[i].waited_ms,
                        d->waiting[i].last_count, d->waiting[i].caused_ms);
    if (total_ms > 0 && d->waiting[worst].caused_ms > 0.5 * total_ms && e->rank_count > 2)
        strbuf_addf(out, "Most of the waiting is for rank %zu.\n", worst);
}

/* ---- operations ---- */

static void add_operation(const struct evidence *e, const struct flight_log *log,
                          const struct flight_entry *entry, struct strbuf *out)
{
    char name[40];
    char bucket[16] = "-";
    int64_t from = entry->started_ns > 0 ? entry->started_ns : entry->queued_ns;

    (void)snprintf(name, sizeof(name), "%s #%" PRIu64, collective_call_name(entry->signature.call),
                   entry->signature.sequence);
    if (entry->bucket > 0)
        (void)snprintf(bucket, sizeof(bucket), "%d/%d", entry->bucket, entry->buckets);
    strbuf_addf(out, "%4u %10.4f %-20.20s %6" PRIu64 " %7s %9" PRIu64 " %-7.7s ", log->rank,
                evidence_seconds(e, log, from), name, entry->step, bucket, entry->signature.count,
                flight_state_name(entry->state));
    if (entry->ended_ns > 0)
        strbuf_addf(out, "%8.3f\n", (double)(entry->ended_ns - from) * 1e-6);
    else
        strbuf_add(out, "       -\n");
}

static void add_operations(const struct inspect_view *view, struct strbuf *out)
{
    const struct evidence *e = view->evidence;

    if (e->first_wall == 0 || view->operations == 0)
        return;
    strbuf_addf(out, "\nLast operations of each rank (seconds since the first recorder opened):\n"
                     "rank    seconds operation              step  bucket     count state         "
                     " ms\n");
    for (size_t i = 0; i < e->rank_count; i++) {
        const struct flight_log *log = &e->ranks[i].flight;
        size_t first = log->length > view->operations ? log->length - view->operations : 0;

        if (!e->ranks[i].has_flight || (view->rank >= 0 && view->rank != (int64_t)i))
            continue;
        for (size_t k = first; k < log->length; k++)
            add_operation(e, log, &log->entries[k], out);
        if (log->length == 0)
            strbuf_addf(out, "%4zu   none\n", i);
    }
}

static void add_problems(const struct evidence *e, struct strbuf *out)
{
    if (e->problems.length == 0)
        return;
    strbuf_add(out, "\nMissing or damaged:\n");
    for (size_t i = 0; i < e->problems.length; i++)
        report_add_wrapped(out, e->problems.texts[i], 2);
}

void inspect_text(const struct inspect_view *view, struct strbuf *out)
{
    const struct evidence *e = view->evidence;
    const struct diagnosis *d = view->diagnosis;

    add_heading(e, out);
    strbuf_add(out, "\n");
    add_ending(e, d, out);
    add_divergence(e, out);
    add_difference(d, out);
    add_ranks(e, out);
    add_critical_path(&e->critical_path, out);
    add_recoveries(e, out);
    add_buckets(e, out);
    add_others(e, out);
    add_waiting(e, d, out);
    add_operations(view, out);
    add_problems(e, out);
}
