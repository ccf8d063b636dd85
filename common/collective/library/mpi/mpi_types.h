/*
 * mpi_types: MPI's types and operations for ours, and its errors.
 * What MPI has no operation for (16-bit floats), or one that treats NaN otherwise (min and max of
 * floats), is an operation of our own that calls the reduction of common/tensor.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_LIBRARY_MPI_TYPES_H
#define SPARRING_COMMON_COLLECTIVE_LIBRARY_MPI_TYPES_H

#include "common/collective/library/library.h"

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#define REDUCE_COUNT_MAX ((size_t)1 << 28) /* elements, or bytes, of one call */

/* STATUS_PEER_LOST with "mpi, <what>: " and MPI's own text; STATUS_OK for MPI_SUCCESS. */
enum status mpi_status(int code, const char *what, struct error *err);

/* The reduction of our own operations, the same for all groups; call it before any of them. */
void mpi_set_reduce(library_reduce_fn *reduce);

/* A type of `bytes` bytes, to go as one element. */
struct mpi_block {
    MPI_Datatype type;
    bool is_ours;
    int count;
};
enum status mpi_block_open(size_t bytes, struct mpi_block *ret, struct error *err);
void mpi_block_close(struct mpi_block *b);

MPI_Datatype mpi_type_of(enum dtype dtype);

/* Averages and factors come as sums.  The caller frees *ret when *ret_is_ours; made and freed per
 * operation, which is a few stores in the library. */
enum status mpi_op_open(const struct reduction *r, MPI_Op *ret, bool *ret_is_ours,
                        struct error *err);

#endif
