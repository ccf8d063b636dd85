/*
 * library_backend: the backend functions over a library's table of calls.  Composed here: the rank
 * order (all-gather, then ascending sums), reduce_scatter (all_to_all, then sums), averages and
 * factors.  What is composed goes through scratch space of the group, in pieces.
 *
 * Ranks that disagree: the first operation of each kind is compared by an all-gather of signatures.
 * Of later ones Gloo's bytes cannot meet, so they wait until the core finds out who does what; MPI
 * may add up whatever has as many bytes, and the mesh finds out afterwards (trail.h).
 */
#ifndef SPARRING_COMMON_COLLECTIVE_LIBRARY_BACKEND_H
#define SPARRING_COMMON_COLLECTIVE_LIBRARY_BACKEND_H

#include "common/collective/collective_ops.h"
#include "common/collective/library/library.h"

#define LIBRARY_KINDS 256 /* of operations remembered as compared */

struct library_group {
    struct collective base;
    const struct library_ops *library;
    struct library *context;          /* NULL in a world of one */
    char *packed;                     /* owned: world_size blocks of piece_bytes */
    char *gathered;                   /* owned: likewise */
    const void **inputs;              /* owned: world_size pointers into gathered */
    double *factors;                  /* owned: of each rank */
    size_t piece_bytes;               /* a multiple of 64 */
    uint64_t compared[LIBRARY_KINDS]; /* hashes; 0: none */
};

/* For the backend's open. */
enum status library_group_open(struct collective *group, const struct library_ops *library,
                               struct error *err);

enum run_outcome library_group_run(struct collective *group, struct collective_work *work,
                                   int64_t until_ns, struct error *err);
void library_group_expected_bytes(const struct collective *group,
                                  const struct collective_args *args, uint64_t *ret_tx,
                                  uint64_t *ret_rx);
/* Only where the library has is_waiting, an interrupt. */
bool library_group_is_waiting(const struct collective *group);
void library_group_interrupt(struct collective *group);
void library_group_close(struct collective *group);

/* library_run.c: one collective, checked and not empty. */
enum status library_run(struct library_group *g, const struct collective_args *args,
                        struct error *err);

#endif
