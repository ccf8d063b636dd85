/*
 * One step at a time is pending: its record waits for the replies.  The model's await callback
 * drives the transfers and detects the last reply.  Bytes of a step are the difference of the
 * counters at two such points.  No locking: everything runs on the training thread.
 */
#include "worker/train/overlap.h"

#include "common/base/clock.h"
#include "worker/train/trainer.h"

bool overlap_is_enabled(const struct trainer *t)
{
    return t->options->overlap_forward && compute_is_host(t->compute);
}

/* All replies to the pending step have arrived, so all of its pushes have been sent, too.  Before
 * that, pushes may be outstanding even after sync_finish, if a link was down. */
static void complete_pending_step(struct trainer *t)
{
    struct overlap *o = &t->overlap;
    struct sync_counters now = sync_counters(t->sync);

    o->pending_step.tx_payload_bytes = now.tx_payload_bytes - o->tx_mark;
    o->pending_step.rx_payload_bytes = now.rx_payload_bytes - o->rx_mark;
    o->tx_mark = now.tx_payload_bytes;
    o->rx_mark = now.rx_payload_bytes;
    o->complete = true;
}

static enum status await_params(void *user, size_t offset, size_t count, struct error *err)
{
    struct trainer *t = user;
    int64_t started;
    enum status status;

    if (!sync_outstanding(t->sync))
        return STATUS_OK;
    started = clock_now_ns();
    status = sync_await(t->sync, offset, count, err);
    t->overlap.waited_ns += clock_now_ns() - started;
    if (status == STATUS_OK && !sync_outstanding(t->sync))
        complete_pending_step(t);
    return status;
}

void overlap_open(struct trainer *t)
{
    if (overlap_is_enabled(t))
        model_set_await(t->model, await_params, t);
}

void overlap_begin(struct trainer *t, const struct sync_counters *before)
{
    t->overlap.waited_ns = 0;
    if (t->overlap.has_pending)
        return;
    t->overlap.tx_mark = before->tx_payload_bytes;
    t->overlap.rx_mark = before->rx_payload_bytes;
}

void overlap_computed(struct trainer *t, struct step_record *step)
{
    step->compute_ns -= t->overlap.waited_ns;
    step->forward_ns -= t->overlap.waited_ns;
    step->exposed_comm_ns += t->overlap.waited_ns;
}

static enum status write_pending_step(struct trainer *t, struct error *err)
{
    struct overlap *o = &t->overlap;

    if (!o->has_pending)
        return STATUS_OK;
    o->has_pending = false;
    return run_record_step(&t->record, &o->pending_step, err);
}

enum status overlap_record(struct trainer *t, const struct step_record *step, struct error *err)
{
    enum status status = write_pending_step(t, err);

    if (status != STATUS_OK)
        return status;
    t->overlap.pending_step = *step;
    t->overlap.has_pending = true;
    t->overlap.complete = false;
    if (sync_outstanding(t->sync))
        return STATUS_OK;
    complete_pending_step(t);
    return write_pending_step(t, err);
}

enum status overlap_wait(struct trainer *t, struct error *err)
{
    int64_t started;
    int64_t waited;
    enum status status;

    if (!sync_outstanding(t->sync))
        return write_pending_step(t, err);
    started = clock_now_ns();
    status = sync_await(t->sync, 0, model_table(t->model)->count, err);
    waited = clock_now_ns() - started;
    t->overlap.pending_step.step_ns += waited;
    t->overlap.pending_step.exposed_comm_ns += waited;
    if (status != STATUS_OK)
        return status;
    complete_pending_step(t);
    return write_pending_step(t, err);
}

void overlap_abandon(struct trainer *t)
{
    t->overlap.has_pending = t->overlap.has_pending && t->overlap.complete;
    (void)write_pending_step(t, NULL);
}
