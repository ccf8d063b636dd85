/*
 * hier_mismatch: inner groups find that ranks differ; callers know nothing of inner operations.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_HIER_MISMATCH_H
#define SPARRING_COMMON_COLLECTIVE_HIER_MISMATCH_H

#include "common/collective/collective_ops.h"

/* `inner` (a group inside `group`) failed because its culprit does something else; *err says what,
 * of inner operations.  Asks that rank what it does in `group`, and says this instead; where it
 * does the same there, or does not answer any more, *err stays and speaks_of_parts says so.  Sets
 * the fault of `group`.  Returns RUN_FAILED.  Blocks for at most 0.3 s. */
enum run_outcome hier_mismatch(struct collective *group, const struct collective_work *work,
                               const struct collective *inner, struct error *err);

#endif
