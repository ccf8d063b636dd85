/*
 * Replaces the error of an inner operation by one about the outer operation.  The culprit's reply
 * counts while it runs its operation and after it failed in it, and only for this group's
 * generation; the reply of a rank that has not started the operation does not explain the mismatch.
 */
#include "common/collective/hier/hier_mismatch.h"

#include "common/base/clock.h"

#define REPLY_WAIT_MS 300

static unsigned rank_of(const struct collective *group, unsigned member)
{
    unsigned rank = 0;

    while (rank + 1 < group->world_size && group->members[rank] != member)
        rank++;
    return rank;
}

enum run_outcome hier_mismatch(struct collective *group, const struct collective_work *work,
                               const struct collective *inner, struct error *err)
{
    struct signature theirs = {.call = COLLECTIVE_CLOSE};
    struct mesh_view view;

    group->fault = inner->fault;
    group->culprit = inner->culprit;
    group->error_is_inner = true;
    if (inner->culprit < 0)
        return RUN_FAILED;
    if (inner->fault != FAULT_FINISHED) {
        mesh_ask(group->mesh, (unsigned)inner->culprit, group->id, clock_deadline_ns(REPLY_WAIT_MS),
                 &view);
        theirs = view.status.signature;
        if (!view.replied || theirs.call == 0 || theirs.generation != work->signature.generation ||
            signature_equal(&theirs, &work->signature))
            return RUN_FAILED;
    }
    group->error_is_inner = false;
    return collective_mismatch(group, work, rank_of(group, (unsigned)inner->culprit), &theirs, err);
}
