/*
 * link_rate: the rate of the network between a job's hosts, measured through its store before the
 * first step.  Called by the trainer, for the size of a parameter server's messages.
 */
#ifndef SPARRING_WORKER_TRAIN_LINK_RATE_H
#define SPARRING_WORKER_TRAIN_LINK_RATE_H

#include "common/store/store.h"

/*
 * The last rank reads values that rank 0's host holds, and publishes the rate: *ret_rate, bytes per
 * second, is the same on all ranks.  It includes the store's own work: on one host a few GB/s.
 * Takes some milliseconds, on slow links up to 0.1 s and one transfer of 256 KiB more.  Every rank
 * of the store calls this once; at least two.  Blocks up to the store's time-out.  Returns the
 * store's errors.
 */
enum status link_rate_measure(struct store *store, double *ret_rate, struct error *err);

#endif
