/*
 * The JSON of `sparring inspect`: the evidence and the diagnosis, member for member.
 */
#include "experiments/inspect/inspect.h"

#include <inttypes.h>
#include <stdlib.h>

static const char *ending_name(enum run_ending ending)
{
    switch (ending) {
    case ENDING_OK:
        return "ok";
    case ENDING_SHRUNK:
        return "shrunk";
    case ENDING_RUNNING:
        return "running";
    case ENDING_CANCELLED:
        return "cancelled";
    default:
        return "failed";
    }
}

static void set_text(json_t *object, const char *name, const char *text)
{
    json_t *value = json_string(text);

    (void)json_object_set_new(object, name, value ? value : json_string("?")); /* not UTF-8 */
}

static void set_integer(json_t *object, const char *name, uint64_t value)
{
    (void)json_object_set_new(object, name, json_integer((json_int_t)value));
}

static void set_number(json_t *object, const char *name, double value)
{
    json_t *number = json_real(value);

    (void)json_object_set_new(object, name, number ? number : json_null()); /* not finite */
}

static json_t *operation(const struct flight_log *log, const struct flight_entry *entry)
{
    const struct signature *s = &entry->signature;
    json_t *o = json_object();
    char text[COLLECTIVE_TEXT_SIZE];

    signature_text(s, text);
    set_integer(o, "index", entry->index);
    set_text(o, "text", text);
    set_text(o, "group", entry->group);
    set_integer(o, "generation", s->generation);
    set_text(o, "call", collective_call_name(s->call));
    set_integer(o, "sequence", s->sequence);
    set_text(o, "dtype", dtype_name(s->dtype));
    set_text(o, "op", reduce_op_name(s->op));
    set_integer(o, "count", s->count);
    set_integer(o, "root", s->root);
    set_integer(o, "step", entry->step);
    set_integer(o, "bucket", (uint64_t)entry->bucket);
    set_integer(o, "buckets", (uint64_t)entry->buckets);
    set_text(o, "state", flight_state_name(entry->state));
    set_integer(o, "done_bytes", entry->done_bytes);
    set_integer(o, "total_bytes", entry->total_bytes);
    set_number(o, "queued_wall", flight_wall(log, entry->queued_ns));
    if (entry->started_ns > 0)
        set_number(o, "started_wall", flight_wall(log, entry->started_ns));
    if (entry->ended_ns > 0)
        set_number(o, "ended_wall", flight_wall(log, entry->ended_ns));
    return o;
}

static json_t *flight(const struct inspect_view *view, const struct evidence_rank *r)
{
    const struct flight_log *log = &r->flight;
    json_t *o = json_object();
    json_t *operations = json_array();
    size_t first = log->length > view->operations ? log->length - view->operations : 0;

    set_integer(o, "recorded", log->recorded);
    set_text(o, "fault", fault_name(log->fault));
    if (log->culprit >= 0)
        set_integer(o, "culprit", (uint64_t)log->culprit);
    set_text(o, "reason", log->reason);
    for (size_t i = first; i < log->length; i++)
        (void)json_array_append_new(operations, operation(log, &log->entries[i]));
    (void)json_object_set_new(o, "operations", operations);
    return o;
}

static json_t *rank(const struct inspect_view *view, size_t index)
{
    static const char *const processes[] = {"unknown", "gone", "runs", "stopped"};
    const struct evidence_rank *r = &view->evidence->ranks[index];
    const struct waiting *w = &view->diagnosis->waiting[index];
    json_t *o = json_object();

    set_integer(o, "rank", r->rank);
    set_integer(o, "pid", (uint64_t)r->pid);
    set_text(o, "host", r->host);
    set_text(o, "process", processes[r->process]);
    set_text(o, "status", r->status);
    set_text(o, "error", r->error);
    set_integer(o, "steps", r->steps);
    set_number(o, "last_loss", r->last_loss);
    set_number(o, "step_ms_mean", r->step_ms);
    set_number(o, "compute_ms", r->compute_ms);
    set_number(o, "exposed_comm_ms", r->exposed_comm_ms);
    set_number(o, "waited_ms", w->waited_ms);
    set_number(o, "caused_ms", w->caused_ms);
    set_integer(o, "last_count", w->last_count);
    (void)json_object_set(o, "recoveries", r->recoveries);
    (void)json_object_set(o, "records", r->others);
    (void)json_object_set(o, "buckets", r->buckets);
    set_text(o, "parameters_hash", r->parameters_hash);
    if (r->has_flight)
        (void)json_object_set_new(o, "flight", flight(view, r));
    return o;
}

static json_t *difference(const struct evidence *e, const struct difference *d)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < 2; i++) {
        json_t *o = operation(&e->ranks[d->ranks[i]].flight, &d->entries[i]);

        set_integer(o, "rank", d->ranks[i]);
        (void)json_array_append_new(list, o);
    }
    return list;
}

static json_t *verdict(const struct evidence *e, const struct diagnosis *d)
{
    json_t *o = json_object();
    char text[512];

    diagnosis_sentence(d, text, sizeof(text));
    set_text(o, "ending", ending_name(d->ending));
    set_text(o, "fault", fault_name(d->fault));
    if (d->culprit >= 0)
        set_integer(o, "culprit", (uint64_t)d->culprit);
    if (d->fault != FAULT_NONE || d->ending == ENDING_FAILED)
        set_text(o, "text", text);
    set_text(o, "reason", d->reason);
    set_number(o, "waited_seconds", d->waited_seconds);
    set_integer(o, "disagreeing", d->disagreeing);
    set_integer(o, "matched_operations", d->matched);
    if (d->difference.found)
        (void)json_object_set_new(o, "difference", difference(e, &d->difference));
    return o;
}

void inspect_json(const struct inspect_view *view, struct strbuf *out)
{
    const struct evidence *e = view->evidence;
    json_t *root = json_object();
    json_t *ranks = json_array();
    json_t *problems = json_array();
    char *text;

    set_integer(root, "schema", 1);
    set_text(root, "path", e->path);
    set_integer(root, "world_size", e->world_size);
    (void)json_object_set_new(root, "verdict", verdict(e, view->diagnosis));
    for (size_t i = 0; i < e->rank_count; i++)
        if (view->rank < 0 || view->rank == (int64_t)i)
            (void)json_array_append_new(ranks, rank(view, i));
    (void)json_object_set_new(root, "ranks", ranks);
    for (size_t i = 0; i < e->problems.length; i++)
        (void)json_array_append_new(problems, json_string(e->problems.texts[i]));
    (void)json_object_set_new(root, "problems", problems);
    text = json_dumps(root, JSON_INDENT(1));
    strbuf_add(out, text ? text : "");
    strbuf_add(out, "\n");
    out->failed = out->failed || !text;
    free(text);
    json_decref(root);
}

/* ---- Chrome trace ---- */

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

    strbuf_addf(out,
                ",\n{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"args\":{\"name\":"
                "\"rank %u\"}}",
                log->rank, log->rank);
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

void inspect_trace(const struct evidence *e, struct strbuf *out)
{
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
    for (size_t i = 0; i < e->rank_count; i++)
        if (e->ranks[i].has_flight)
            trace_rank(e, &e->ranks[i].flight, end, out);
    strbuf_add(out, "\n]}\n");
}
