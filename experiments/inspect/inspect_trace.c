/*
 * inspect_trace: the Chrome trace of `sparring inspect --trace`: operations of all-reduce from the
 * flight recorders, steps with their parts and a server's rounds from the records.  Recorders of
 * one host share a clock; records have the time of day.  Arrows (flow events) lead from the rank
 * that began an operation last to the others; in lockstep with servers, from each rank's wait to
 * the server's round and back.
 */
#include "experiments/inspect/inspect.h"

#include "common/base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_THREAD     100   /* above the thread numbers of groups */
#define SERVER_PROCESSES 10000 /* above the process numbers of ranks */

/* An operation of one rank, for the arrows. */
struct traced_operation {
    uint64_t group, sequence;
    uint32_t generation; /* of the group: a shrunk one counts from 1 again */
    unsigned process, thread;
    double begun, ended; /* seconds */
};

struct trace {
    const struct evidence *evidence;
    double origin, end; /* time of day of the trace's zero; its last operation, in seconds */
    struct traced_operation *operations; /* owned */
    size_t operation_count, operation_capacity;
    size_t arrows; /* so far: their ids */
    struct strbuf *out;
};

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

static void note_operation(struct trace *t, const struct flight_entry *entry,
                           const struct traced_operation *operation)
{
    if (collective_call_is_pair(entry->signature.call) || entry->ended_ns == 0)
        return;
    if (mem_grow(t->operation_count, &t->operation_capacity, sizeof(*t->operations), "a trace",
                 &t->operations, NULL) != STATUS_OK) {
        t->out->failed = true;
        return;
    }
    t->operations[t->operation_count++] = *operation;
}

static void trace_operation(struct trace *t, const struct flight_log *log,
                            const struct flight_entry *entry, unsigned thread)
{
    const struct evidence *e = t->evidence;
    char text[COLLECTIVE_TEXT_SIZE];
    int64_t from = entry->started_ns > 0 ? entry->started_ns : entry->queued_ns;
    double begun = evidence_seconds(e, log, from);
    double ended = entry->ended_ns > 0 ? evidence_seconds(e, log, entry->ended_ns) : t->end;
    const struct traced_operation operation = {entry->signature.group,
                                               entry->signature.sequence,
                                               entry->signature.generation,
                                               log->rank,
                                               thread,
                                               begun,
                                               ended};

    note_operation(t, entry, &operation);
    signature_text(&entry->signature, text);
    strbuf_addf(t->out, ",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"name\":",
                log->rank, thread, begun * 1e6, ended > begun ? (ended - begun) * 1e6 : 0);
    strbuf_add_json(t->out, text);
    strbuf_addf(t->out,
                ",\"cat\":\"%s\",\"args\":{\"state\":\"%s\",\"step\":%" PRIu64
                ",\"bucket\":%d,\"buckets\":%d,\"generation\":%u,\"done_bytes\":%" PRIu64
                ",\"total_bytes\":%" PRIu64 ",\"queued_us\":%.3f}}",
                collective_call_name(entry->signature.call), flight_state_name(entry->state),
                entry->step, entry->bucket, entry->buckets, entry->signature.generation,
                entry->done_bytes, entry->total_bytes, (double)(from - entry->queued_ns) * 1e-3);
}

static void trace_rank(struct trace *t, const struct flight_log *log)
{
    struct threads threads = {.count = 0};

    for (size_t i = 0; i < log->length; i++)
        trace_operation(t, log, &log->entries[i],
                        thread_of(&threads, &log->entries[i], log->rank, t->out));
    if (log->fault != FAULT_NONE) {
        strbuf_addf(t->out,
                    ",\n{\"ph\":\"i\",\"s\":\"p\",\"pid\":%u,\"tid\":0,\"ts\":%.3f,\"name\":",
                    log->rank, newest_moment(t->evidence, log) * 1e6);
        strbuf_add_json(t->out, log->reason);
        strbuf_add(t->out, "}");
    }
}

/* ---- arrows ---- */

struct trace_point {
    unsigned process, thread;
    double us;
};

/* None back in time: the clocks of two hosts differ, and a server's sum may have been complete
 * before a rank began to wait for it. */
static void add_arrow(struct trace *t, const char *name, struct trace_point from,
                      struct trace_point to)
{
    const struct trace_point ends[] = {from, to};

    if (from.us > to.us)
        return;
    for (unsigned i = 0; i < 2; i++)
        strbuf_addf(t->out,
                    ",\n{\"ph\":\"%s\"%s,\"id\":%zu,\"pid\":%u,\"tid\":%u,\"ts\":%.3f,"
                    "\"name\":\"%s\",\"cat\":\"wait\"}",
                    i == 0 ? "s" : "f", i == 0 ? "" : ",\"bp\":\"e\"", t->arrows, ends[i].process,
                    ends[i].thread, ends[i].us, name);
    t->arrows++;
}

/* By operation, then by beginning. */
static int compare_operations(const void *a, const void *b)
{
    const struct traced_operation *x = a, *y = b;

    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->generation != y->generation)
        return x->generation < y->generation ? -1 : 1;
    if (x->sequence != y->sequence)
        return x->sequence < y->sequence ? -1 : 1;
    return (x->begun > y->begun) - (x->begun < y->begun);
}

/* From the rank that began each operation last, when it began, to the others' ends. */
static void trace_waits(struct trace *t)
{
    const struct traced_operation *o = t->operations;

    if (t->operation_count > 0)
        qsort(t->operations, t->operation_count, sizeof(*t->operations), compare_operations);
    for (size_t first = 0, past; first < t->operation_count; first = past) {
        for (past = first + 1; past < t->operation_count && o[past].group == o[first].group &&
                               o[past].generation == o[first].generation &&
                               o[past].sequence == o[first].sequence;)
            past++;
        for (size_t i = first; i + 1 < past; i++)
            add_arrow(t, "all wait for the last",
                      (struct trace_point){o[past - 1].process, o[past - 1].thread,
                                           o[past - 1].begun * 1e6},
                      (struct trace_point){o[i].process, o[i].thread, o[i].ended * 1e6});
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

static double ns_of(const json_t *record, const char *name)
{
    return json_number_value(json_object_get(record, name));
}

/* The parts of a step one after the other; where they overlap (a forward that waits), the trace
 * shows their sums. */
static void trace_parts(const struct trace *t, const json_t *step, unsigned process)
{
    const double forward_ns = ns_of(step, "forward_ns");
    const struct {
        const char *name;
        double ns;
    } parts[] = {{"input", ns_of(step, "input_ns")},
                 {"forward", forward_ns},
                 {"backward", ns_of(step, "compute_ns") - forward_ns},
                 {"communication", ns_of(step, "exposed_comm_ns")},
                 {"optimizer", ns_of(step, "optimizer_ns")}};
    double us = (begin_of(step) - t->origin) * 1e6;

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]) && isfinite(us); i++) {
        if (parts[i].ns > 0)
            strbuf_addf(t->out,
                        ",\n{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
                        "\"name\":\"%s\",\"cat\":\"part\"}",
                        process, STEPS_THREAD, us, parts[i].ns * 1e-3, parts[i].name);
        us += parts[i].ns > 0 ? parts[i].ns * 1e-3 : 0;
    }
}

static void trace_steps(const struct trace *t, const struct evidence_rank *r)
{
    size_t index;
    json_t *step;

    strbuf_addf(t->out,
                ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,\"tid\":%u,\"args\":{"
                "\"name\":\"steps\"}}",
                r->rank, STEPS_THREAD);
    trace_records(r->timeline, t->origin, r->rank, STEPS_THREAD, "step", "step_ns", t->out);
    json_array_foreach(r->timeline, index, step)
    {
        trace_parts(t, step, r->rank);
    }
}

/* The last record of both is of the same update. */
static void trace_exchange(struct trace *t, const struct evidence_rank *r,
                           const struct evidence_server *server)
{
    const size_t steps = json_array_size(r->timeline), rounds = json_array_size(server->timeline);

    for (size_t back = 1; back <= steps && back <= rounds; back++) {
        const json_t *step = json_array_get(r->timeline, steps - back);
        const json_t *round = json_array_get(server->timeline, rounds - back);
        const double waits = (begin_of(step) - t->origin) * 1e6 +
                             (ns_of(step, "input_ns") + ns_of(step, "compute_ns")) * 1e-3;
        const double complete =
            (begin_of(round) - t->origin) * 1e6 + ns_of(round, "round_ns") * 1e-3;
        const struct trace_point sum = {SERVER_PROCESSES + server->index, 0, complete};

        add_arrow(t, "push", (struct trace_point){r->rank, STEPS_THREAD, waits}, sum);
        add_arrow(t, "pull", sum,
                  (struct trace_point){r->rank, STEPS_THREAD,
                                       waits + ns_of(step, "exposed_comm_ns") * 1e-3});
    }
}

static void trace_all(struct trace *t)
{
    const struct evidence *e = t->evidence;

    for (size_t i = 0; i < e->rank_count; i++) {
        name_process(e->ranks[i].rank, "rank", e->ranks[i].rank, t->out);
        trace_steps(t, &e->ranks[i]);
        if (e->ranks[i].has_flight)
            trace_rank(t, &e->ranks[i].flight);
    }
    for (size_t k = 0; k < e->server_count; k++) {
        const struct evidence_server *server = &e->servers[k];

        name_process(SERVER_PROCESSES + server->index, "server", server->index, t->out);
        trace_records(server->timeline, t->origin, SERVER_PROCESSES + server->index, 0, "round",
                      "round_ns", t->out);
        for (size_t i = 0; i < e->rank_count && e->critical_path.servers > 0; i++)
            trace_exchange(t, &e->ranks[i], server);
    }
    trace_waits(t);
}

void inspect_trace(const struct evidence *e, struct strbuf *out)
{
    struct trace trace = {.evidence = e, .origin = find_origin(e), .out = out};

    for (size_t i = 0; i < e->rank_count; i++)
        if (e->ranks[i].has_flight)
            trace.end = fmax(trace.end, newest_moment(e, &e->ranks[i].flight));
    strbuf_add(out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                    "{\"ph\":\"M\",\"name\":\"process_labels\",\"pid\":0,\"args\":{\"labels\":"
                    "\"sparring\"}}");
    trace_all(&trace);
    strbuf_add(out, "\n]}\n");
    free(trace.operations);
}
