/*
 * profile: the layers of a profile as timed operations.  The inputs are one number of a sample, the
 * logits two zeros.
 */
#include "worker/model/profile.h"
#include "worker/model/builder.h"

#define CLASSES 2

static enum status check_profile(const struct model *m, const struct profile *p, const char *path,
                                 struct error *err)
{
    if (!compute_is_host(m->compute))
        return error_set(err, STATUS_UNSUPPORTED, "runs on --device cpu only");
    if (p->batch > 0 && p->batch != m->max_batch)
        return error_set(err, STATUS_CONFIG,
                         "the times in %s are of steps of %zu samples, not of %zu (--batch-size)",
                         path, p->batch, m->max_batch);
    return STATUS_OK;
}

void build_profile(struct builder *b, const struct spec *spec)
{
    struct profile p;
    unsigned at = build_input(b, 1, 1, 1);

    if (b->status != STATUS_OK)
        return;
    b->status = profile_read(spec->path, &p, b->err);
    if (b->status == STATUS_OK)
        b->status = check_profile(b->model, &p, spec->path, b->err);
    if (b->status == STATUS_OK)
        b->model->times_hash = p.times_hash;
    for (size_t i = 0; i < p.length && b->status == STATUS_OK; i++) {
        const struct profile_layer *l = &p.layers[i];

        at = build_timed(b, at, CLASSES,
                         &(struct timed){.forward_ns = l->forward_ns,
                                         .backward_ns = l->backward_ns,
                                         .busy = p.busy},
                         &p.table.views[l->first], l->parameters);
    }
    profile_release(&p);
}
