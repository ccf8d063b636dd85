/*
 * timed: a layer of a profile.  It takes the time that the file states.  A busy layer uses that
 * much processor time, so that it takes longer where processes share a core, as the layer itself
 * would, and writes its gradients, the same numbers in every step, as part of that time.  Otherwise
 * another device would compute: the layer ends a fixed time after the one before it, whenever this
 * thread gets to run; it begins later only where it waits for its parameters.  Its gradients are
 * written once; each step then begins with the means of the last one.
 */
#include "common/base/clock.h"
#include "common/base/stop.h"
#include "worker/model/program.h"

#include <string.h>
#include <time.h>

#define STOP_POLL_NS INT64_C(100000000) /* between checks for a stop */

static int64_t processor_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void wait_until(int64_t end_ns)
{
    int64_t now_ns = clock_now_ns();

    while (now_ns < end_ns && !stop_requested()) {
        int64_t nap_ns = end_ns - now_ns < STOP_POLL_NS ? end_ns - now_ns : STOP_POLL_NS;

        (void)nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
        now_ns = clock_now_ns();
    }
}

/* Different numbers up to 2^-10, so that sums can go wrong. */
static void write_gradients(float *gradients, size_t count, bool accumulate)
{
    for (size_t i = 0; i < count; i++) {
        float value = (float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-41f;

        gradients[i] = accumulate ? gradients[i] + value : value;
    }
}

static enum status open_timed(struct model *m, struct operation *op, struct error *err)
{
    (void)err;
    if (!op->timed.busy)
        write_gradients(m->grads + op->start, op->count, false);
    return STATUS_OK;
}

static enum status forward(struct model *m, struct operation *op, size_t batch, struct error *err)
{
    struct timed *t = &op->timed;
    const struct operation *before = op > m->operations ? op - 1 : NULL;
    int64_t start_ns = t->busy ? processor_ns() : clock_now_ns();

    (void)err;
    memset(program_write(m, op->out), 0, batch * m->values[op->out].count * sizeof(float));
    if (t->busy) {
        while (processor_ns() - start_ns < t->forward_ns && !stop_requested())
            continue;
        return STATUS_OK;
    }
    if (before && !m->await)
        start_ns = before->timed.end_ns;
    t->end_ns = start_ns + t->forward_ns;
    wait_until(t->end_ns);
    return STATUS_OK;
}

static enum status backward(struct model *m, struct operation *op, size_t batch, bool accumulate,
                            struct error *err)
{
    struct timed *t = &op->timed;
    const struct operation *after = op + 1 < m->operations + m->length ? op + 1 : op;

    (void)batch;
    (void)err;
    if (t->busy) {
        int64_t start_ns = processor_ns();

        write_gradients(m->grads + op->start, op->count, accumulate);
        while (processor_ns() - start_ns < t->backward_ns && !stop_requested())
            continue;
        return STATUS_OK;
    }
    t->end_ns = (m->await && after == op ? clock_now_ns() : after->timed.end_ns) + t->backward_ns;
    wait_until(t->end_ns);
    return STATUS_OK;
}

const struct operation_kind operation_timed = {
    .in_place = true,
    .open = open_timed,
    .forward = forward,
    .backward = backward,
};
