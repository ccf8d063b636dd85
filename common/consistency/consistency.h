/*
 * consistency: how far the ranks of a parameter server may drift apart; server and worker must
 * interpret these settings identically.
 *
 * Library.  Pure functions on a job's settings.  Needs base.  Called by the parameter server, the
 * worker, codec and wire.
 *
 *   bsp     bulk synchronous: a round of a partition is the sum of all n ranks' gradients.  With b
 *           backup workers it is the sum of the first n - b; later pushes are dropped
 *           (Chen et al. 2016, per partition as TensorFlow's SyncReplicasOptimizer).
 *   ssp(s)  stale synchronous: a rank that has pushed c times reads once every rank has pushed
 *           c - s times (Ho et al. 2013).  With s = 0 no rank can read between two pushes of a
 *           round: that equals bsp, and is run as bsp.
 *   asp     asynchronous: no rank waits.
 *
 * In asp and in ssp with s > 0 each push is a separate optimizer step.  The learning-rate rule: a
 * rank then sends its gradient undivided and the server steps with lr / n, so that n pushes move
 * as far as one step of bsp.
 *
 * asp can damp a push of staleness t (optimizer steps between its rank's read and its own step):
 * by a learning rate divided by max(1, t) (Zhang et al. 2015), and by delay compensation, which
 * replaces the gradient g by g + lambda g g (w - w_read) (Zheng et al. 2017, DC-ASGD-c).
 */
#ifndef SPARRING_COMMON_CONSISTENCY_CONSISTENCY_H
#define SPARRING_COMMON_CONSISTENCY_CONSISTENCY_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define CONSISTENCY_STALENESS_MAX 1000000u
#define CONSISTENCY_RULES_MAX     1024u /* struct exact_staleness in a job's terms */

enum consistency_mode { CONSISTENCY_BSP, CONSISTENCY_SSP, CONSISTENCY_ASP };

struct consistency {
    enum consistency_mode mode;
    uint32_t staleness;        /* s of ssp, else 0 */
    uint32_t backup;           /* b of bsp, else 0 */
    bool lr_by_staleness;      /* asp: lr / max(1, staleness of the push) */
    double delay_compensation; /* asp: lambda; 0: none */
};

/*
 * For experiments: the push of `rank` in rounds first..last is applied after exactly `steps` other
 * optimizer steps since the rank's read of the partition; until then it is held.  If several rules
 * match, the last one applies.
 */
struct exact_staleness {
    uint32_t rank;
    uint32_t steps;
    uint64_t first, last; /* rounds, from 1 */
};

/* "bsp", "ssp", "asp". */
const char *consistency_name(enum consistency_mode mode);
bool consistency_parse(const char *name, enum consistency_mode *ret);

/* Every rank waits for every other in each round: bsp without backup workers, and ssp(0). */
bool consistency_is_lockstep(const struct consistency *c);

/* Each push is a separate optimizer step: asp, and ssp with s > 0. */
bool consistency_steps_per_push(const struct consistency *c);

/* The divisor of a rank's gradient: the number of pushes that one step averages. */
unsigned consistency_divisor(const struct consistency *c, unsigned world_size);

/* STATUS_INVALID, with the conflict, for a bound of another mode or out of range, and for as many
 * backup workers as ranks; and in every mode except plain bsp for an optimizer that runs on the
 * workers, and for sums in rank order when the mode does not wait for all ranks. */
enum status consistency_check(const struct consistency *c, unsigned world_size,
                              bool update_on_server, bool rank_order, struct error *err);

#endif
