/*
 * fault_injector: whatever begins or ends, the state of its target is derived anew from all faults
 * that are active, so that they may overlap: a link is down while one cuts it, else it has the
 * lowest rate of those that slow it; a process runs when none pauses it.
 */
#include "experiments/launch/fault_injector.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"

#include <signal.h>
#include <stdlib.h>

enum status fault_injector_open(struct fault_injector *f, const struct fault_schedule *schedule,
                                struct child_set *child_set, struct error *err)
{
    *f = (struct fault_injector){.schedule = schedule,
                                 .child_set = child_set,
                                 .start_ns = clock_now_ns(),
                                 .start_wall = clock_wall_seconds()};
    return mem_calloc(schedule->length, sizeof(*f->injected), "faults", &f->injected, err);
}

static bool is_active(const struct fault_injector *f, size_t fault, enum fault_action action,
                      size_t index)
{
    return f->injected[fault].state == FAULT_ACTIVE &&
           f->schedule->faults[fault].action == action && f->schedule->faults[fault].index == index;
}

static enum status set_link(const struct fault_injector *f, size_t host, struct error *err)
{
    const struct network *network = f->child_set->network;
    double rate = network->links[host].rate;
    bool slowed = false, cut = false;

    for (size_t i = 0; i < f->schedule->length; i++) {
        const double slow = f->schedule->faults[i].rate;

        cut = cut || is_active(f, i, FAULT_CUT, host);
        if (!is_active(f, i, FAULT_SLOW, host) || (slowed && slow >= rate))
            continue;
        rate = slow;
        slowed = true;
    }
    return network_change(network, host, rate, !cut, err);
}

static void set_process(const struct fault_injector *f, size_t index)
{
    struct child *child = &f->child_set->children[index];
    const bool was_paused = child->paused;

    child->paused = child->to_resume = false;
    for (size_t i = 0; i < f->schedule->length; i++)
        if (is_active(f, i, FAULT_PAUSE, index)) {
            child->paused = true;
            child->to_resume = child->to_resume || f->schedule->faults[i].length_ns != INT64_MAX;
        }
    if (child->paused != was_paused) /* a second SIGSTOP would come after a SIGCONT */
        child_signal(child, child->paused ? SIGSTOP : SIGCONT);
}

static void set_killed(const struct fault_injector *f, const struct scheduled_fault *s, bool begins)
{
    struct child *child = &f->child_set->children[s->index];

    child->restart_at_ns = begins && s->length_ns != INT64_MAX ? INT64_MAX : 0;
    if (begins)
        child_signal(child, SIGKILL);
}

/* What follows from the fault's new state. */
static enum status apply(const struct fault_injector *f, size_t fault, struct error *err)
{
    const struct scheduled_fault *s = &f->schedule->faults[fault];

    switch (s->action) {
    case FAULT_CUT:
    case FAULT_SLOW:
        return set_link(f, s->index, err);
    case FAULT_PAUSE:
        set_process(f, s->index);
        break;
    case FAULT_KILL:
        set_killed(f, s, f->injected[fault].state == FAULT_ACTIVE);
        break;
    }
    return STATUS_OK;
}

static enum status begin_fault(struct fault_injector *f, size_t fault, struct error *err)
{
    const struct scheduled_fault *s = &f->schedule->faults[fault];
    struct injected_fault *now = &f->injected[fault];
    enum status status;

    log_info("fault: %s %s", fault_action_name(s->action), s->target);
    now->state = FAULT_ACTIVE;
    status = apply(f, fault, err);
    now->begin_wall = clock_wall_seconds();
    now->end_ns = s->length_ns == INT64_MAX ? INT64_MAX : clock_now_ns() + s->length_ns;
    return status;
}

static enum status end_fault(struct fault_injector *f, size_t fault, struct error *err)
{
    const struct scheduled_fault *s = &f->schedule->faults[fault];
    struct injected_fault *now = &f->injected[fault];

    now->end_wall = clock_wall_seconds();
    now->state = FAULT_ENDED;
    log_info("fault: %s %s has ended", fault_action_name(s->action), s->target);
    return apply(f, fault, err);
}

enum status fault_injector_step(struct fault_injector *f, int64_t *ret_next_ns, struct error *err)
{
    enum status status = STATUS_OK;

    *ret_next_ns = INT64_MAX;
    for (size_t i = 0; i < f->schedule->length && status == STATUS_OK; i++) {
        const struct injected_fault *now = &f->injected[i];
        int64_t due_ns = f->start_ns + f->schedule->faults[i].begin_ns;

        if (now->state == FAULT_PLANNED && clock_now_ns() >= due_ns)
            status = begin_fault(f, i, err);
        else if (now->state == FAULT_ACTIVE && clock_now_ns() >= now->end_ns)
            status = end_fault(f, i, err);
        if (now->state != FAULT_PLANNED)
            due_ns = now->state == FAULT_ACTIVE ? now->end_ns : INT64_MAX;
        if (due_ns < *ret_next_ns)
            *ret_next_ns = due_ns;
    }
    return status;
}

enum status fault_injector_write(const struct fault_injector *f, const char *folder, uint64_t seed,
                                 struct error *err)
{
    struct strbuf text = STRBUF_INIT;
    char path[4096];
    enum status status = file_join(path, sizeof(path), folder, "faults.json", err);

    strbuf_addf(&text, "{\"schema\":1,\"seed\":%ju,\"start_wall\":%.6f,\"faults\":[",
                (uintmax_t)seed, f->start_wall);
    for (size_t i = 0; i < f->schedule->length; i++) {
        const struct scheduled_fault *s = &f->schedule->faults[i];
        const struct injected_fault *now = &f->injected[i];

        strbuf_addf(&text, "%s\n{\"action\":\"%s\",\"target\":\"%s\",\"planned_s\":%.6f",
                    i > 0 ? "," : "", fault_action_name(s->action), s->target,
                    (double)s->begin_ns * 1e-9);
        if (s->length_ns != INT64_MAX)
            strbuf_addf(&text, ",\"length_s\":%.6f", (double)s->length_ns * 1e-9);
        if (s->action == FAULT_SLOW)
            strbuf_addf(&text, ",\"rate_bits_s\":%.0f", s->rate);
        if (now->state != FAULT_PLANNED)
            strbuf_addf(&text, ",\"begin_wall\":%.6f", now->begin_wall);
        if (now->state == FAULT_ENDED)
            strbuf_addf(&text, ",\"end_wall\":%.6f", now->end_wall);
        strbuf_add(&text, "}");
    }
    strbuf_add(&text, "]}\n");
    if (status == STATUS_OK)
        status = file_write_text(path, &text, err);
    strbuf_release(&text);
    return status;
}

void fault_injector_close(struct fault_injector *f)
{
    free(f->injected);
    *f = (struct fault_injector){0};
}
