#include "worker/train/overlap.h"

#include "common/base/clock.h"
#include "worker/train/trainer.h"

bool overlap_is_wanted(const struct trainer *t)
{
    return t->options->overlap_forward && compute_is_host(t->compute);
}

/* The answers to the step that is held have come, so all that it sends is sent, too: what a link
 * did not take in time goes up when it is back, perhaps after finish. */
static void complete(struct trainer *t)
{
    struct overlap *o = &t->overlap;
    struct sync_counters now = sync_counters(t->sync);

    o->held.tx_payload_bytes = now.tx_payload_bytes - o->tx_mark;
    o->held.rx_payload_bytes = now.rx_payload_bytes - o->rx_mark;
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
        complete(t);
    return status;
}

void overlap_open(struct trainer *t)
{
    if (overlap_is_wanted(t))
        model_set_await(t->model, await_params, t);
}

void overlap_begin(struct trainer *t, const struct sync_counters *before)
{
    t->overlap.waited_ns = 0;
    if (t->overlap.holds)
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

/* Write the step that is held. */
static enum status write_held(struct trainer *t, struct error *err)
{
    struct overlap *o = &t->overlap;

    if (!o->holds)
        return STATUS_OK;
    o->holds = false;
    return run_record_step(&t->record, &o->held, err);
}

enum status overlap_record(struct trainer *t, const struct step_record *step, struct error *err)
{
    enum status status = write_held(t, err);

    if (status != STATUS_OK)
        return status;
    t->overlap.held = *step;
    t->overlap.holds = true;
    t->overlap.complete = false;
    if (sync_outstanding(t->sync))
        return STATUS_OK;
    complete(t);
    return write_held(t, err);
}

enum status overlap_settle(struct trainer *t, struct error *err)
{
    int64_t started;
    int64_t waited;
    enum status status;

    if (!sync_outstanding(t->sync))
        return write_held(t, err);
    started = clock_now_ns();
    status = sync_await(t->sync, 0, model_table(t->model)->count, err);
    waited = clock_now_ns() - started;
    t->overlap.held.step_ns += waited;
    t->overlap.held.exposed_comm_ns += waited;
    if (status != STATUS_OK)
        return status;
    complete(t);
    return write_held(t, err);
}

void overlap_abandon(struct trainer *t)
{
    t->overlap.holds = t->overlap.holds && t->overlap.complete;
    (void)write_held(t, NULL);
}
