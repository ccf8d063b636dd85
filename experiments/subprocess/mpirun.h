/*
 * mpirun: Open MPI's launcher can wait for ever for ranks that have all ended (open-mpi/ompi#3380):
 * 4.1.4 did so in 7 of 300 jobs whose ranks failed at the same time.  Whoever starts it looks.
 */
#ifndef SPARRING_EXPERIMENTS_SUBPROCESS_MPIRUN_H
#define SPARRING_EXPERIMENTS_SUBPROCESS_MPIRUN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define MPIRUN_LOOK_MS 1000

struct mpirun_watch {
    pid_t pid;
    int64_t look_ns;  /* when /proc is looked at again */
    int64_t ended_ns; /* when its ranks were first seen to have ended; 0: they have not */
};

/* To be asked every MPIRUN_LOOK_MS; oftener costs a look at the clock.  True once the process has
 * had children that have all ended, and has not reaped them, for 5 s: a sound one takes
 * milliseconds. */
bool mpirun_is_stuck(struct mpirun_watch *w);

#endif
