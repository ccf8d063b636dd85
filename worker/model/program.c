/*
 * program: properties derived from the order of the operations when the model is opened: the range
 * of the slab of each operation's parameters, the length of the final prefix of gradients after its
 * backward, which gradients accumulate, and which gradients share memory (gradient_plan.c).
 */
#include "worker/model/program.h"

#include "common/base/memory.h"
#include "worker/model/gradient_plan.h"

#include <assert.h>
#include <stdlib.h>

/* ---- order ---- */

/* Set each operation's range of the slab and its ready_count: the views from the slab's start that
 * no earlier operation reads are final after its backward. */
static enum status analyse_parameters(struct model *m, struct error *err)
{
    size_t *first_reader = NULL; /* per view */
    size_t final = m->table.length;
    enum status status = mem_calloc(m->table.length, sizeof(*first_reader), "order of parameters",
                                    &first_reader, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = m->length; i-- > 0;) {
        struct operation *op = &m->operations[i];
        const struct tensor_view *views = &m->table.views[op->first_view];

        op->start = op->views > 0 ? views[op->views - 1].offset : 0;
        op->count = op->views > 0 ? views[0].offset + views[0].count - op->start : 0;
        op->shared_weight = op->views > 0 && first_reader[op->first_view] > 0;
        for (size_t v = 0; v < op->views; v++)
            first_reader[op->first_view + v] = i + 1;
    }
    for (size_t i = m->length; i-- > 0;) {
        struct operation *op = &m->operations[i];

        op->first_use = op->views > 0 && first_reader[op->first_view] == i + 1;
        while (final > 0 && first_reader[final - 1] > i)
            final--;
        if (final < m->table.length)
            op->ready_count = m->table.views[final].offset + m->table.views[final].count;
    }
    assert(final == 0);
    free(first_reader);
    return STATUS_OK;
}

/* Assert what build_block requires: equal sizes, and no reader from outside within the block. */
static void check_block(const struct model *m, const struct block *block)
{
    assert(block->in != INPUT_VALUE && block->end < m->length);
    assert(m->values[block->in].count == m->values[block->out].count);
    for (size_t i = 0; i < m->length; i++) {
        const struct operation *op = &m->operations[i];
        bool inside = i >= block->first && i < block->end;
        unsigned reads_value[2] = {op->in, op->residual};

        for (int k = 0; k < 2; k++) {
            bool of_block = reads_value[k] >= block->in && reads_value[k] < block->out;

            assert(reads_value[k] == INPUT_VALUE || inside == of_block);
            (void)of_block;
        }
        (void)inside;
    }
}

static void check_readers(const struct model *m)
{
    for (size_t i = 0; i < m->length; i++) {
        const struct operation *op = &m->operations[i];
        size_t readers = 0;

        for (size_t j = 0; j < m->length; j++)
            readers += m->operations[j].in == op->in ||
                       (op->in != INPUT_VALUE && m->operations[j].residual == op->in);
        assert(readers == 1 || !(op->kind->overwrites_input || op->kind->sets_input_gradient));
        (void)readers;
    }
    for (size_t i = 0; i < m->blocks_length; i++)
        check_block(m, &m->blocks[i]);
}

/* An operation accumulates into the gradient of its input if a later operation reads the same
 * value: backward runs in reverse order. */
static void analyse_gradients(struct model *m)
{
    for (size_t i = 0; i < m->length; i++)
        for (size_t j = i + 1; j < m->length; j++)
            m->operations[i].accumulates |= m->operations[j].in == m->operations[i].in ||
                                            m->operations[j].residual == m->operations[i].in;
    check_readers(m);
}

static bool reads_value(const struct operation *op, unsigned value)
{
    return op->in == value || op->residual == value;
}

/* True for a linear layer that is the only reader of a linear layer with an activation, and is
 * skipped together with it or never. */
static bool fuses_activation_backward(const struct model *m, size_t i)
{
    const struct operation *op = &m->operations[i];
    const struct operation *before = i > 0 ? &m->operations[i - 1] : NULL;

    if (!before || op->kind != &operation_linear || before->kind != &operation_linear ||
        before->linear.activation == ACTIVATION_NONE || op->in != before->out)
        return false;
    for (size_t j = i + 1; j < m->length; j++)
        if (reads_value(&m->operations[j], before->out))
            return false;
    for (size_t k = 0; k < m->blocks_length; k++)
        if (m->blocks[k].first == i || m->blocks[k].end == i)
            return false;
    return true;
}

enum status program_analyse(struct model *m, struct error *err)
{
    enum status status = analyse_parameters(m, err);

    if (status == STATUS_OK)
        analyse_gradients(m);
    for (size_t i = 0; i < m->length && status == STATUS_OK; i++)
        m->operations[i].fuses_activation_backward = fuses_activation_backward(m, i);
    return status;
}

/* ---- memory of gradients ---- */

/* A skipped block swaps the buffers of its two gradients, so both get the size of the larger one.
 */
static void equalize_block_buffers(const struct model *m, struct gradient_plan *plan)
{
    size_t largest = 0;

    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < m->blocks_length; i++) {
            size_t *in = &plan->counts[plan->buffer[m->blocks[i].in]];
            size_t *out = &plan->counts[plan->buffer[m->blocks[i].out]];

            if (in == out)
                continue;
            if (pass == 1)
                *in = *out = largest;
            if (*in > largest)
                largest = *in;
            if (*out > largest)
                largest = *out;
        }
    }
}

static enum status alloc_pool(struct model *m, const struct gradient_plan *plan, struct error *err)
{
    enum status status = mem_calloc(plan->length + 1, sizeof(*m->pool), "gradients", &m->pool, err);

    for (size_t i = 0; i < plan->length && status == STATUS_OK; i++) {
        m->pool_length = i + 1;
        status =
            program_alloc_values(m, plan->counts[i], "gradients of activations", &m->pool[i], err);
    }
    for (size_t v = 0; v < m->values_length; v++)
        m->values[v].gradient = plan->buffer[v];
    return status;
}

enum status program_plan_gradients(struct model *m, struct error *err)
{
    struct plan_operation *operations = NULL;
    size_t *counts = NULL;
    struct gradient_plan plan = {0};
    enum status status = mem_calloc(m->length, sizeof(*operations), "plan", &operations, err);

    if (status == STATUS_OK)
        status = mem_calloc(m->values_length, sizeof(*counts), "plan", &counts, err);
    if (status == STATUS_OK) {
        for (size_t i = 0; i < m->length; i++)
            operations[i] = (struct plan_operation){.in = m->operations[i].in,
                                                    .residual = m->operations[i].residual,
                                                    .out = m->operations[i].out,
                                                    .in_place = m->operations[i].kind->in_place};
        for (size_t v = 0; v < m->values_length; v++)
            counts[v] = m->values[v].count;
        status = gradient_plan_make(operations, m->length, counts, &plan, err);
    }
    if (status == STATUS_OK) {
        equalize_block_buffers(m, &plan);
        status = alloc_pool(m, &plan, err);
    }
    gradient_plan_release(&plan);
    free(operations);
    free(counts);
    return status;
}
