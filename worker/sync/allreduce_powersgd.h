/*
 * powersgd: approximates a gradient matrix M (rows, columns) by P Q^T of a low rank; only P and Q
 * are reduced.  Used by allreduce_powersgd.c and its tests. Source: Vogels, Karimireddy and Jaggi,
 * PowerSGD, NeurIPS 2019; torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py.
 */
#ifndef SPARRING_WORKER_SYNC_ALLREDUCE_POWERSGD_H
#define SPARRING_WORKER_SYNC_ALLREDUCE_POWERSGD_H

#include "worker/sync/allreduce.h"

struct powersgd_matrix { /* one compressed view */
    size_t offset;       /* in the slab */
    size_t rows, columns;
    size_t rank;     /* min(rows, columns, the option's) */
    size_t p_offset; /* in the bucket's P; (rows, rank) row-major */
    size_t q_offset; /* in the bucket's Q; (columns, rank) row-major */
};

struct powersgd_range { /* one view that is sent uncompressed */
    size_t offset, count;
};

struct powersgd_bucket {
    struct powersgd_matrix *matrices; /* owned */
    size_t matrix_count;
    struct powersgd_range *plain; /* owned */
    size_t plain_count;
    float *p, *q, *raw; /* in the scratch: all P, all Q, all plain views of the bucket */
    size_t p_count, q_count, raw_count;
    bool has_q; /* q is initialised ... */
    bool had_q; /* ... and was before the current step */
};

struct powersgd {
    struct powersgd_bucket *buckets; /* owned; one per bucket */
    size_t length;
    float *error;    /* owned; slab layout; before the current step; NULL: no error feedback */
    float *next;     /* owned; slab layout; after it; a failed step is repeated from `error` */
    float *q_before; /* owned; all Q before the current step, one bucket after the other */
    size_t q_count;  /* of all buckets */
    bool has_step;
    uint64_t step;  /* current or last */
    size_t reduced; /* its buckets that have ended; at most one more has begun */
};

/* True if (rows + columns) * rank * min_rate < rows * columns. */
bool powersgd_should_compress(size_t rows, size_t columns, size_t rank, double min_rate);

/* Modified Gram-Schmidt on the columns of a (rows, rank) row-major matrix; 1e-8 is added to every
 * norm, so a column of zeros stays zero. */
void powersgd_orthogonalise(float *matrix, size_t rows, size_t rank);

/* This rank's compression error after `step`, which is the last step or the one before it; slab
 * layout, borrowed. */
const float *powersgd_residual(const struct powersgd *state, uint64_t step);

#endif
