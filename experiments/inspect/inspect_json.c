/*
 * inspect_json: the JSON of `sparring inspect`: the evidence and the diagnosis, member by member.
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

static json_t *operation_json(const struct flight_log *log, const struct flight_entry *entry)
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

static json_t *flight_json(const struct inspect_view *view, const struct evidence_rank *r)
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
        (void)json_array_append_new(operations, operation_json(log, &log->entries[i]));
    (void)json_object_set_new(o, "operations", operations);
    return o;
}

static json_t *rank_json(const struct inspect_view *view, size_t index)
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
        (void)json_object_set_new(o, "flight", flight_json(view, r));
    return o;
}

static json_t *difference_json(const struct evidence *e, const struct difference *d)
{
    json_t *list = json_array();

    for (unsigned i = 0; i < 2; i++) {
        json_t *o = operation_json(&e->ranks[d->ranks[i]].flight, &d->entries[i]);

        set_integer(o, "rank", d->ranks[i]);
        (void)json_array_append_new(list, o);
    }
    return list;
}

static json_t *diagnosis_json(const struct evidence *e, const struct diagnosis *d)
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
        (void)json_object_set_new(o, "difference", difference_json(e, &d->difference));
    return o;
}

void inspect_json(const struct inspect_view *view, struct strbuf *out)
{
    const struct evidence *e = view->evidence;
    json_t *root = json_object();
    json_t *ranks = json_array();
    json_t *problems = json_array();
    struct strbuf path = STRBUF_INIT;
    char *text;

    set_integer(root, "schema", 1);
    set_text(root, "path", e->path);
    set_integer(root, "world_size", e->world_size);
    (void)json_object_set_new(root, "verdict", diagnosis_json(e, view->diagnosis));
    for (size_t i = 0; i < e->rank_count; i++)
        if (view->rank < 0 || view->rank == (int64_t)i)
            (void)json_array_append_new(ranks, rank_json(view, i));
    (void)json_object_set_new(root, "ranks", ranks);
    critical_path_write_json(&e->critical_path, &path);
    (void)json_object_set_new(root, "critical_path",
                              strbuf_ok(&path) ? json_loads(path.text, 0, NULL) : NULL);
    strbuf_release(&path);
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
