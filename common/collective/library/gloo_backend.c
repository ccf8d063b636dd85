/*
 * The gloo backend: the operations table over library_backend.c with Gloo's library table.  A call
 * blocks; interrupt ends it by closing Gloo's connections.
 */
#include "common/collective/library/gloo.h"
#include "common/collective/library/library_backend.h"

static enum status gloo_group_open(struct collective *group, int64_t deadline_ns, struct error *err)
{
    (void)deadline_ns; /* Gloo uses the group's time-out only */
    return library_group_open(group, gloo_library(), err);
}

const struct collective_ops collective_gloo_ops = {
    .name = "gloo",
    .size = sizeof(struct library_group),
    .blocking = true,
    .unchecked = true,
    .open = gloo_group_open,
    .run = library_group_run,
    .is_waiting = library_group_is_waiting,
    .interrupt = library_group_interrupt,
    .expected_bytes = library_group_expected_bytes,
    .close = library_group_close,
};
