/*
 * The plan of gradients against separate memory for each value: random programs run backward over
 * integers, in the plan's buffers and in separate ones.
 */
#include "common/base/memory.h"
#include "tests/support/support.h"
#include "worker/model/gradient_plan.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_MAX 24

static struct error err;

struct program {
    struct plan_operation operations[LENGTH_MAX];
    size_t counts[LENGTH_MAX + 1];
    uint64_t slope[LENGTH_MAX], mask[LENGTH_MAX]; /* d in = slope * mask * d out */
    size_t length;
};

static size_t random_below(size_t n)
{
    return (size_t)(support_random() * (double)n);
}

/* A random value that may still be read; mostly one without a reader so far. */
static unsigned pick_value(const bool *closed, const bool *read, size_t values, unsigned other)
{
    bool unread = support_random() < 0.7;

    for (int tries = 0; tries < 200; tries++) {
        unsigned v = (unsigned)random_below(values);

        if (!closed[v] && v != other && (!unread || !read[v] || tries > 100))
            return v;
    }
    return (unsigned)values - 1;
}

/* False: some value has no reader. */
static bool draw_program(struct program *p)
{
    bool closed[LENGTH_MAX + 1] = {false};
    bool read[LENGTH_MAX + 1] = {false};

    *p = (struct program){.length = 2 + random_below(LENGTH_MAX - 1)};
    for (size_t i = 0; i < p->length; i++) {
        struct plan_operation *op = &p->operations[i];

        op->out = (unsigned)i + 1;
        op->in = pick_value(closed, read, i + 1, UINT32_MAX);
        op->in_place = support_random() < 0.5;
        if (i + 1 < p->length && support_random() < 0.4) {
            op->residual = pick_value(closed, read, i + 1, op->in);
            if (op->residual == op->in)
                op->residual = 0;
            closed[op->residual] = op->residual > 0;
        }
        read[op->in] = read[op->residual] = true;
        p->counts[i] = 1 + random_below(100);
        p->slope[i] = 2 * random_below(1000) + 3;
        p->mask[i] = 2 * random_below(1000) + 3;
    }
    p->counts[p->length] = 1 + random_below(100);
    for (size_t v = 1; v < p->length; v++)
        if (!read[v])
            return false;
    return true;
}

/* Whether a later operation also reads the value. */
static bool read_later(const struct program *p, size_t index, unsigned value)
{
    for (size_t i = index + 1; i < p->length; i++)
        if (p->operations[i].in == value || p->operations[i].residual == value)
            return true;
    return false;
}

static void exact_gradients(const struct program *p, uint64_t *gradients)
{
    memset(gradients, 0, (p->length + 1) * sizeof(*gradients));
    gradients[p->length] = 1;
    for (size_t i = p->length; i-- > 0;) {
        const struct plan_operation *op = &p->operations[i];
        uint64_t dy = p->mask[i] * gradients[op->out];

        gradients[op->in] += p->slope[i] * dy;
        gradients[op->residual] += op->residual ? dy : 0;
    }
}

/* As in model_step: masks in place, the first contribution sets, later ones add. */
static void check_run(const struct program *p, const struct gradient_plan *plan,
                      const uint64_t *expected)
{
    uint64_t buffers[LENGTH_MAX + 1] = {0};
    uint64_t last = 1;

    for (size_t i = p->length; i-- > 0;) {
        const struct plan_operation *op = &p->operations[i];
        uint64_t *dy = op->out == p->length ? &last : &buffers[plan->buffer[op->out]];

        ck_assert_uint_eq(*dy, expected[op->out]);
        *dy *= p->mask[i];
        if (op->residual)
            ck_assert_ptr_eq(&buffers[plan->buffer[op->residual]], dy);
        if (op->in) {
            uint64_t *dx = &buffers[plan->buffer[op->in]];

            ck_assert(dx != dy || (op->in_place && !op->residual));
            *dx = p->slope[i] * *dy + (read_later(p, i, op->in) ? *dx : 0);
        }
    }
}

static void check_sizes(const struct program *p, const struct gradient_plan *plan)
{
    size_t needed[LENGTH_MAX + 1] = {0};

    ck_assert_uint_eq(plan->buffer[0], SIZE_MAX);
    ck_assert_uint_eq(plan->buffer[p->length], SIZE_MAX);
    for (size_t v = 1; v < p->length; v++) {
        ck_assert_uint_lt(plan->buffer[v], plan->length);
        if (p->counts[v] > needed[plan->buffer[v]])
            needed[plan->buffer[v]] = p->counts[v];
    }
    for (size_t b = 0; b < plan->length; b++)
        ck_assert_uint_eq(plan->counts[b], needed[b]);
}

START_TEST(test_random_programs)
{
    uint64_t expected[LENGTH_MAX + 1];
    int planned = 0, shared = 0;

    while (planned < 3000) {
        struct program p;
        struct gradient_plan plan;

        if (!draw_program(&p))
            continue;
        planned++;
        assert_ok(gradient_plan_make(p.operations, p.length, p.counts, &plan, &err));
        exact_gradients(&p, expected);
        check_run(&p, &plan, expected);
        check_sizes(&p, &plan);
        shared += plan.length + 1 < p.length;
        gradient_plan_release(&plan);
    }
    ck_assert_int_gt(shared, 1000);
}
END_TEST

static size_t buffers_of(const struct plan_operation *operations, size_t length)
{
    size_t counts[LENGTH_MAX + 1];
    struct gradient_plan plan;
    size_t buffers;

    for (size_t i = 0; i <= length; i++)
        counts[i] = 1;
    assert_ok(gradient_plan_make(operations, length, counts, &plan, &err));
    buffers = plan.length;
    gradient_plan_release(&plan);
    return buffers;
}

START_TEST(test_few_buffers)
{
    struct plan_operation chain[LENGTH_MAX] = {{0}};
    /* embedding, then twice: norm, linear, and a linear with a residual; an output layer */
    static const struct plan_operation transformer[] = {
        {0, 0, 1, false}, {1, 0, 2, false}, {2, 0, 3, false}, {3, 1, 4, false},
        {4, 0, 5, false}, {5, 0, 6, false}, {6, 4, 7, false}, {7, 0, 8, false}};

    for (unsigned i = 0; i < LENGTH_MAX; i++)
        chain[i] = (struct plan_operation){.in = i, .out = i + 1};
    ck_assert_uint_eq(buffers_of(chain, LENGTH_MAX), 2);
    for (unsigned i = 0; i < LENGTH_MAX; i++)
        chain[i].in_place = true;
    ck_assert_uint_eq(buffers_of(chain, LENGTH_MAX), 1);
    ck_assert_uint_eq(buffers_of(chain, 1), 0);
    ck_assert_uint_eq(buffers_of(transformer, 8), 3);
}
END_TEST

START_TEST(test_failing_allocations)
{
    static const struct plan_operation operations[] = {{0, 0, 1, false}, {1, 0, 2, false}};
    static const size_t counts[] = {1, 2, 3};
    struct gradient_plan plan;
    size_t n = 0;
    enum status status = STATUS_NO_MEMORY;

    while (status != STATUS_OK) {
        ck_assert_uint_lt(++n, 10);
        mem_fail_nth(n);
        status = gradient_plan_make(operations, 2, counts, &plan, &err);
        ck_assert(status == STATUS_OK || status == STATUS_NO_MEMORY);
    }
    mem_fail_nth(0);
    ck_assert_uint_eq(n, 8);
    gradient_plan_release(&plan);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("gradient_plan", 0, TEST(test_random_programs), TEST(test_few_buffers),
                       TEST(test_failing_allocations));
}
