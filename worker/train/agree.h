/*
 * agree: before the first step every rank proves that it runs the same job.
 */
#ifndef SPARRING_WORKER_TRAIN_AGREE_H
#define SPARRING_WORKER_TRAIN_AGREE_H

#include "common/store/store.h"

/*
 * Publish this rank's manifest (text of common/manifest); rank 0 compares all of them with its own
 * and every rank learns the verdict.  STATUS_MISMATCH lists every differing field with the ranks
 * named. Blocks up to the store's time-out.
 */
enum status agree_on_manifest(struct store *store, const char *manifest, struct error *err);

#endif
