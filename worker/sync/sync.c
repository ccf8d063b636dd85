/*
 * The interface of sync: finds the implementation by name and forwards to its table of functions,
 * with the default where there is no group, or no server.  Callers never use ->ops.  No locks, no
 * state.
 */
#include "worker/sync/sync.h"

#include <assert.h>
#include <string.h>

static const struct sync_ops *const registry[] = {
    &sync_local_ops,
    &sync_allreduce_ops,
    &sync_ps_ops,
};

enum status sync_open(const struct sync_config *config, struct sync **ret_sync, struct error *err)
{
    for (size_t i = 0; i < sizeof(registry) / sizeof(registry[0]); i++) {
        enum status status;

        if (strcmp(registry[i]->name, config->kind) != 0)
            continue;
        status = registry[i]->open(config, ret_sync, err);
        if (status == STATUS_OK)
            (*ret_sync)->ops = registry[i];
        return status;
    }
    return error_set(err, STATUS_INVALID,
                     "unknown sync '%s': use local, allreduce, ps or dataparallel", config->kind);
}

bool sync_is_replacement(const struct sync *s)
{
    return s->ops->server && s->ops->server->is_replacement(s);
}

enum status sync_start(struct sync *s, struct error *err)
{
    return s->ops->start(s, err);
}

enum status sync_announce_samples(struct sync *s, size_t samples, unsigned *ret_active,
                                  struct error *err)
{
    if (s->ops->group)
        return s->ops->group->announce_samples(s, samples, ret_active, err);
    *ret_active = samples > 0;
    return STATUS_OK;
}

bool sync_broadcasts_model(const struct sync *s)
{
    return s->ops->group != NULL;
}

enum status sync_begin(struct sync *s, uint64_t step, struct error *err)
{
    return s->ops->begin(s, step, err);
}

void sync_ready(struct sync *s, size_t ready_count)
{
    s->ops->ready(s, ready_count);
}

enum status sync_fetch_state(struct sync *s, float *values, float *const *moments,
                             uint64_t *ret_steps, struct error *err)
{
    if (!s->ops->server)
        return error_set(err, STATUS_UNSUPPORTED, "sync %s has no state of an optimizer",
                         s->ops->name);
    return s->ops->server->fetch_state(s, values, moments, ret_steps, err);
}

bool sync_selects_rows(const struct sync *s)
{
    return s->ops->server && s->ops->server->selects_rows(s);
}

void sync_select_range(struct sync *s, size_t offset, size_t count)
{
    if (sync_selects_rows(s))
        s->ops->server->select_range(s, offset, count);
}

void sync_select_rows(struct sync *s, const struct tensor_view *view, const uint32_t *rows,
                      size_t length)
{
    size_t width = view->shape[0] > 0 ? view->count / view->shape[0] : 0;

    for (size_t i = 0; i < length; i++) {
        assert(rows[i] < view->shape[0]);
        sync_select_range(s, view->offset + rows[i] * width, width);
    }
}

enum status sync_finish(struct sync *s, struct error *err)
{
    return s->ops->finish(s, err);
}

enum status sync_await(struct sync *s, size_t offset, size_t count, struct error *err)
{
    return s->outstanding ? s->ops->server->await(s, offset, count, err) : STATUS_OK;
}

bool sync_outstanding(const struct sync *s)
{
    return s->outstanding;
}

uint64_t sync_skipped(const struct sync *s)
{
    return s->ops->server ? s->ops->server->skipped(s) : 0;
}

enum status sync_end(struct sync *s, struct error *err)
{
    return s->ops->end ? s->ops->end(s, err) : STATUS_OK;
}

enum status sync_agree_used(struct sync *s, bool *used, struct error *err)
{
    return s->ops->group ? s->ops->group->agree_used(s, used, err) : STATUS_OK;
}

void sync_timeline(const struct sync *s, struct sync_timeline *ret)
{
    *ret = (struct sync_timeline){0};
    if (s->ops->group)
        s->ops->group->timeline(s, ret);
}

enum sync_yield sync_yields(const struct sync *s)
{
    return s->yields;
}

struct sync_counters sync_counters(const struct sync *s)
{
    return s->ops->counters(s);
}

void sync_expected_bytes(const struct sync *s, uint64_t *ret_tx, uint64_t *ret_rx)
{
    s->ops->expected_bytes(s, ret_tx, ret_rx);
}

const char *sync_backend(const struct sync *s)
{
    return s->ops->backend(s);
}

enum fault sync_fault(const struct sync *s, unsigned *ret_rank)
{
    return s->ops->fault ? s->ops->fault(s, ret_rank) : FAULT_NONE;
}

enum status sync_shrink(struct sync *s, struct sync_loss *ret, struct error *err)
{
    if (!s->ops->group)
        return error_set(err, STATUS_UNSUPPORTED, "%s needs all its ranks", s->ops->name);
    return s->ops->group->shrink(s, ret, err);
}

enum status sync_all_gather(struct sync *s, const void *mine, size_t bytes, void *all,
                            struct error *err)
{
    if (!s->ops->group)
        return error_set(err, STATUS_UNSUPPORTED, "%s has no group", s->ops->name);
    return s->ops->group->all_gather(s, mine, bytes, all, err);
}

enum status sync_broadcast(struct sync *s, void *data, size_t bytes, unsigned root,
                           struct error *err)
{
    if (!s->ops->group)
        return error_set(err, STATUS_UNSUPPORTED, "%s has no group", s->ops->name);
    return s->ops->group->broadcast(s, data, bytes, root, err);
}

bool sync_close(struct sync *s, const struct error *failure)
{
    return !s || s->ops->close(s, failure);
}
