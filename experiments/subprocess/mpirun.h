/*
 * mpirun: Open MPI's launcher can wait for ever for ranks that have all ended (open-mpi/ompi#3380):
 * 4.1.4 did so in 7 of 300 jobs whose ranks failed at the same time.  Its parent polls for that.
 */
#ifndef SPARRING_EXPERIMENTS_SUBPROCESS_MPIRUN_H
#define SPARRING_EXPERIMENTS_SUBPROCESS_MPIRUN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MPIRUN_CHECK_MS 1000

struct mpirun_watch {
    pid_t pid;
    int64_t next_check_ns; /* when /proc is read again */
    int64_t ended_ns;      /* when its ranks were first seen to have ended; 0: they have not */
};

/* Call every MPIRUN_CHECK_MS; calls in between only read the clock.  True once the process has had
 * only zombie children for 5 s: a working mpirun reaps them within milliseconds. */
bool mpirun_is_stuck(struct mpirun_watch *w);

#endif
