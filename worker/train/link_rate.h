/*
 * link_rate: the rate and the round trip of the network between a job's hosts, measured through its
 * store before the first step.  Called by the trainer, for the size of a parameter server's
 * messages, and for how many may be without a reply.
 */
#ifndef SPARRING_WORKER_TRAIN_LINK_RATE_H
#define SPARRING_WORKER_TRAIN_LINK_RATE_H

#include "common/store/store.h"

/* Both 0: not measured. */
struct link_rate {
    double bytes_per_s;
    double round_trip_s;
};

/*
 * The last rank reads values that rank 0's host holds, and publishes what it measured, so that
 * *ret is the same on all ranks.  It includes the store's own work: on one host a few GB/s.
 * Takes some milliseconds, and at least four transfers of 256 KiB and twelve round trips.  Every
 * rank of the store calls this once; at least two.  Blocks up to the store's time-out.  Returns the
 * store's errors.
 */
enum status link_rate_measure(struct store *store, struct link_rate *ret, struct error *err);

#endif
