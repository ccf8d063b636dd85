/*
 * gradient_plan: values that share one gradient form a group (a union-find over values).  A group
 * acquires a buffer at its first contribution in backward and releases it at its last producer.
 * Best fit: the smallest free buffer that is large enough, else the largest free one, which grows.
 */
#include "worker/model/gradient_plan.h"

#include "common/base/memory.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

struct planner {
    const struct plan_operation *operations;
    size_t length;
    size_t *group;    /* per value: its parent in the union-find; itself: the root */
    size_t *readers;  /* per value */
    size_t *last_use; /* per group: the operation after whose backward its buffer is free */
    size_t *largest;  /* per group: elements */
    bool *in_use;     /* per buffer */
};

static size_t group_of(const struct planner *p, size_t value)
{
    while (p->group[value] != value)
        value = p->group[value];
    return value;
}

static void merge_groups(struct planner *p, size_t a, size_t b)
{
    p->group[group_of(p, a)] = group_of(p, b);
}

static void count_readers(struct planner *p)
{
    for (size_t i = 0; i < p->length; i++) {
        const struct plan_operation *op = &p->operations[i];

        assert(op->out == i + 1 && op->in <= i && op->residual <= i);
        p->readers[op->in]++;
        if (op->residual)
            p->readers[op->residual]++;
    }
}

static void make_groups(struct planner *p)
{
    for (size_t v = 0; v <= p->length; v++)
        p->group[v] = v;
    for (size_t i = 0; i + 1 < p->length; i++) {
        const struct plan_operation *op = &p->operations[i];

        if (op->residual) {
            assert(op->residual != op->in);
            merge_groups(p, op->residual, op->out);
        } else if (op->in_place && op->in && p->readers[op->in] == 1) {
            merge_groups(p, op->in, op->out);
        }
    }
}

static void measure_groups(struct planner *p, const size_t *counts)
{
    for (size_t v = p->length; v > 0;
         v--) { /* downwards: the last assignment is the first producer */
        size_t g = group_of(p, v);

        p->last_use[g] = v - 1;
        if (counts[v] > p->largest[g])
            p->largest[g] = counts[v];
    }
}

static size_t acquire_buffer(struct planner *p, struct gradient_plan *plan, size_t count)
{
    size_t best = SIZE_MAX;

    for (size_t b = 0; b < plan->length; b++) {
        bool fits = plan->counts[b] >= count;

        if (p->in_use[b])
            continue;
        if (best == SIZE_MAX ||
            (plan->counts[best] >= count ? fits && plan->counts[b] < plan->counts[best]
                                         : plan->counts[b] > plan->counts[best]))
            best = b;
    }
    if (best == SIZE_MAX)
        best = plan->length++;
    if (plan->counts[best] < count)
        plan->counts[best] = count;
    p->in_use[best] = true;
    return best;
}

/* Acquire the buffer of `in` before releasing that of `out`: backward reads one and writes the
 * other. */
static void assign_buffers(struct planner *p, struct gradient_plan *plan)
{
    for (size_t i = p->length; i-- > 0;) {
        size_t in = group_of(p, p->operations[i].in);
        size_t out = group_of(p, i + 1);

        if (p->operations[i].in && plan->buffer[in] == SIZE_MAX)
            plan->buffer[in] = acquire_buffer(p, plan, p->largest[in]);
        if (i + 1 < p->length && p->last_use[out] == i)
            p->in_use[plan->buffer[out]] = false;
    }
    for (size_t v = 1; v < p->length; v++)
        plan->buffer[v] = plan->buffer[group_of(p, v)];
}

static void planner_release(struct planner *p)
{
    free(p->group);
    free(p->readers);
    free(p->last_use);
    free(p->largest);
    free(p->in_use);
}

enum status gradient_plan_make(const struct plan_operation *operations, size_t length,
                               const size_t *counts, struct gradient_plan *ret, struct error *err)
{
    struct planner p = {.operations = operations, .length = length};
    struct gradient_plan plan = {0};
    size_t **arrays[] = {&p.group, &p.readers, &p.last_use, &p.largest, &plan.buffer, &plan.counts};
    enum status status =
        mem_calloc(length + 1, sizeof(*p.in_use), "plan of gradients", &p.in_use, err);

    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]) && status == STATUS_OK; i++)
        status = mem_calloc(length + 1, sizeof(**arrays[i]), "plan of gradients", arrays[i], err);
    if (status == STATUS_OK) {
        for (size_t v = 0; v <= length; v++)
            plan.buffer[v] = SIZE_MAX;
        count_readers(&p);
        make_groups(&p);
        measure_groups(&p, counts);
        assign_buffers(&p, &plan);
        *ret = plan;
    } else {
        gradient_plan_release(&plan);
    }
    planner_release(&p);
    return status;
}

void gradient_plan_release(struct gradient_plan *p)
{
    free(p->buffer);
    free(p->counts);
    *p = (struct gradient_plan){0};
}
