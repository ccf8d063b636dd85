/*
 * gloo: libgloo, the real library, as a peer to compare with.  Only in builds that found it.
 * Limits: one TCP socket per pair of ranks and no shared memory; while connecting it waits up to
 * five times the group's time-out for a rank that died meanwhile.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_GLOO_H
#define SPARRING_COMMON_COLLECTIVE_GLOO_H

#include "common/collective/library/library.h"

#ifdef __cplusplus
extern "C" {
#endif

const struct library_ops *gloo_library(void);

/* library_ops.bytes: Gloo does not report how much it sends, so this follows the algorithms of
 * facebookincubator/gloo 5b14351. */
void gloo_moved_bytes(enum collective_call call, unsigned rank, unsigned n, uint64_t bytes,
                      size_t element_bytes, unsigned root, uint64_t *ret_tx, uint64_t *ret_rx);

#ifdef __cplusplus
}
#endif

#endif
