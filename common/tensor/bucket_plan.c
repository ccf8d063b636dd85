/*
 * bucket_plan: cuts a slab into gradient buckets.  Pure arithmetic: equal tables and limits give
 * equal plans on every rank.  Buckets are in slab order, which is the order in which backward
 * yields gradients, so the first bucket (the small one) is the first that can be sent.
 */
#include "common/base/memory.h"
#include "common/tensor/tensor.h"

#include <stdlib.h>

enum status bucket_plan_make(const struct tensor_table *t, size_t first_bytes, size_t cap_bytes,
                             struct bucket_plan *ret, struct error *err)
{
    struct bucket_plan plan = {0};
    size_t limit = first_bytes;
    size_t offset = 0;
    size_t count = 0; /* of the open bucket */
    enum status status =
        mem_calloc(t->length, sizeof(*plan.buckets), "bucket plan", &plan.buckets, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = t->length; i-- > 0;) {
        count += t->views[i].count;
        if (count * sizeof(float) < limit && i > 0)
            continue;
        plan.buckets[plan.length++] = (struct bucket){.offset = offset, .count = count};
        offset += count;
        count = 0;
        limit = cap_bytes;
    }
    *ret = plan;
    return STATUS_OK;
}

void bucket_plan_release(struct bucket_plan *p)
{
    if (!p)
        return;
    free(p->buckets);
    *p = (struct bucket_plan){0};
}
