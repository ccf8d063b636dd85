/*
 * mpi_rank: the program that mpirun starts for test_chaos_mpi, once per rank.
 */
#ifndef SPARRING_TESTS_COMMON_COLLECTIVE_CHAOS_MPI_RANK_H
#define SPARRING_TESTS_COMMON_COLLECTIVE_CHAOS_MPI_RANK_H

#define MPI_RANK_AT 4 /* the operation at which the victim does what its role says */

/*
 * Adds up over and over until something goes wrong, which is an error's text and an exit code.
 *   argv  STORE TIMEOUT_MS VICTIM ROLE WATCHED
 * From operation MPI_RANK_AT on rank VICTIM does as ROLE says: "work", "hold", "leave" the group,
 * "count" one element more.  With WATCHED = 1 the rank is a child of the process that mpirun has
 * started, which says how it ended.
 * What it prints: "rank 1 is process 4711: hold" at that operation, "rank 1 ended with 3" (128 + n
 * for signal n).
 */
int mpi_rank_main(int argc, char **argv);

#endif
