/*
 * inspect_trace: the Chrome trace of `sparring inspect --trace`: operations of all-reduce from the
 * flight recorders, steps and a server's rounds from the records.  Recorders of one host share a
 * clock; records have the time of day.
 */
#include "experiments/inspect/inspect.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define STEPS_THREAD     100   /* above the thread numbers of groups */
#define SERVER_PROCESSES 10000 /* above the process numbers of ranks */

/* Groups of one rank in the order in which they appear; the position is the thread's number. */
struct threads {
    uint64_t ids[64];
    unsigned count;
};

static unsigned thread_of(struct threads *t, const struct flight_entry *entry, unsigned rank,
                          struct strbuf *out)
{
    for (unsigned i = 0; i < t->count; i++)
        if (t->ids[i] == entry->signature.group)
            return i;
    if (t->count == sizeof(t->ids) / sizeof(t->ids[0]))
        return t->count - 1;
    t->ids[t->count] = entry->signature.group;
    strbuf_addf(out,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{"
                "\"name\":",
                rank, t->count);
    strbuf_add_json(out, entry->group);
    strbuf_add(out, "}}");
    return t->count++;
}

static double newest_moment(const struct evidence *e, const struct flight_log *log)
{
    int64_t newest = log->opened_ns;

    for (size_t i = 0; i < log->length; i++) {
        const struct flight_entry *entry = &log->entries[i];

        newest = entry->queued_ns > newest ? entry->queued_ns : newest;
        newest = entry->started_ns > newest ? entry->started_ns : newest;
        newest = entry->ended_ns > newest ? entry->ended_ns : newest;
    }
    return evidence_seconds(e, log, newest);
}

static void trace_operation(const struct evidence *e, const struct flight_log *log,
                            const struct flight_entry *entry, unsigned thread, double end,
                            struct strbuf *out)
{
    char text[COLLECTIVE_TEXT_SIZE];
    int64_t from = entry->started_ns > 0 ? entry->started_ns : entry->queued_ns;
    double begun = evidence_seconds(e, log, from);
    double ended = entry->ended_ns > 0 ? evidence_seconds(e, log, entry->ended_ns) : end;

    signature_text(&entry->signature, text);
    strbuf_addf(out, ",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"name\":",
                log->rank, thread, begun * 1e6, ended > begun ? (ended - begun) * 1e6 : 0);
    strbuf_add_json(out, text);
    strbuf_addf(out,
                ",\"cat\":\"%s\",\"args\":{\"state\":\"%s\",\"step\":%" PRIu64
                ",\"bucket\":%d,\"buckets\":%d,\"generation\":%u,\"done_bytes\":%" PRIu64
                ",\"total_bytes\":%" PRIu64 ",\"queued_us\":%.3f}}",
                collective_call_name(entry->signature.call), flight_state_name(entry->state),
                entry->step, entry->bucket, entry->buckets, entry->signature.generation,
                entry->done_bytes, entry->total_bytes, (double)(from - entry->queued_ns) * 1e-3);
}

static void trace_rank(const struct evidence *e, const struct flight_log *log, double end,
                       struct strbuf *out)
{
    struct threads threads = {.count = 0};

    for (size_t i = 0; i < log->length; i++)
        trace_operation(e, log, &log->entries[i],
                        thread_of(&threads, &log->entries[i], log->rank, out), end, out);
    if (log->fault != FAULT_NONE) {
        strbuf_addf(out, ",\n{\"ph\":\"i\",\"s\":\"p\",\"pid\":%u,\"tid\":0,\"ts\":%.3f,\"name\":",
                    log->rank, newest_moment(e, log) * 1e6);
        strbuf_add_json(out, log->reason);
        strbuf_add(out, "}");
    }
}

static double begin_of(const json_t *record)
{
    const json_t *begin = json_object_get(record, "begin_wall");

    return begin ? json_number_value(begin) : (double)INFINITY;
}

/* The time of day of the trace's zero. */
static double find_origin(const struct evidence *e)
{
    double origin = (double)INFINITY;

    if (e->first_wall > 0)
        return e->first_wall;
    for (size_t i = 0; i < e->rank_count; i++)
        origin = fmin(origin, begin_of(json_array_get(e->ranks[i].timeline, 0)));
    for (size_t i = 0; i < e->server_count; i++)
        origin = fmin(origin, begin_of(json_array_get(e->servers[i].timeline, 0)));
    return origin;
}

/* Steps or rounds: `number` and `duration` name their members; all members go into the args. */
static void trace_records(const json_t *timeline, double origin, unsigned process, unsigned thread,
                          const char *number, const char *duration, struct strbuf *out)
{
    size_t index;
    json_t *record;

    json_array_foreach(timeline, index, record)
    {
        char *members = json_dumps(record, JSON_COMPACT);

        if (members && isfinite(begin_of(record)))
            strbuf_addf(out,
                        ",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
                        "\"name\":\"%s %jd\",\"cat\":\"%s\",\"args\":%s}",
                        process, thread, (begin_of(record) - origin) * 1e6,
                        json_number_value(json_object_get(record, duration)) * 1e-3, number,
                        (intmax_t)json_integer_value(json_object_get(record, number)), number,
                        members);
        out->failed = out->failed || !members;
        free(members);
    }
}

static void name_process(unsigned process, const char *kind, unsigned index, struct strbuf *out)
{
    strbuf_addf(out,
                ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":"
                "\"%s %u\"}}",
                process, kind, index);
}

static void trace_steps(const struct evidence_rank *r, double origin, struct strbuf *out)
{
    strbuf_addf(out,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{"
                "\"name\":\"steps\"}}",
                r->rank, STEPS_THREAD);
    trace_records(r->timeline, origin, r->rank, STEPS_THREAD, "step", "step_ns", out);
}

void inspect_trace(const struct evidence *e, struct strbuf *out)
{
    double origin = find_origin(e);
    double end = 0;

    for (size_t i = 0; i < e->rank_count; i++) {
        const struct flight_log *log = &e->ranks[i].flight;

        if (!e->ranks[i].has_flight)
            continue;
        end = newest_moment(e, log) > end ? newest_moment(e, log) : end;
    }
    strbuf_add(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                    "{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":0,\"args\":{\"labels\":"
                    "\"sparring\"}}");
    for (size_t i = 0; i < e->rank_count; i++) {
        name_process(e->ranks[i].rank, "rank", e->ranks[i].rank, out);
        trace_steps(&e->ranks[i], origin, out);
        if (e->ranks[i].has_flight)
            trace_rank(e, &e->ranks[i].flight, end, out);
    }
    for (size_t i = 0; i < e->server_count; i++) {
        name_process(SERVER_PROCESSES + e->servers[i].index, "server", e->servers[i].index, out);
        trace_records(e->servers[i].timeline, origin, SERVER_PROCESSES + e->servers[i].index, 0,
                      "round", "round_ns", out);
    }
    strbuf_add(out, "\n]}\n");
}
