/*
 * hier_mismatch: reports a mismatch found by an inner group in terms of the outer operation.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_HIER_MISMATCH_H
#define SPARRING_COMMON_COLLECTIVE_HIER_MISMATCH_H

#include "common/collective/collective_ops.h"

/* `inner` (a group inside `group`) failed because its culprit runs another operation; *err names
 * the inner operations.  Asks that rank for its operation in `group` and puts both into *err; where
 * they are equal, or no reply comes, *err stays and error_is_inner is set.  Sets
 * the fault of `group`.  Returns RUN_FAILED.  Blocks for at most 0.3 s. */
enum run_outcome hier_mismatch(struct collective *group, const struct collective_work *work,
                               const struct collective *inner, struct error *err);

#endif
