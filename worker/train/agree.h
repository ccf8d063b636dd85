/*
 * agree: checks before the first step that all ranks run the same job.  Called by the trainer,
 * after the rendezvous.  Elastic jobs have no store: their servers compare the manifests.
 */
#ifndef SPARRING_WORKER_TRAIN_AGREE_H
#define SPARRING_WORKER_TRAIN_AGREE_H

#include "common/store/store.h"

/*
 * Publish this rank's manifest (text of common/manifest).  Rank 0 compares all of them with its
 * own, and every rank reads the result.  STATUS_MISMATCH lists every differing field and its ranks.
 * Blocks up to the store's time-out.
 */
enum status agree_on_manifest(struct store *store, const char *manifest, struct error *err);

#endif
