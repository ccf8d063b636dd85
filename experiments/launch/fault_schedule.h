/*
 * fault_schedule: the faults to inject into a job, each at a time (--fault-schedule FILE).  One
 * rule per line:
 *
 *   AT[-AT] pause PROCESS [for SECONDS]    SIGSTOP, then SIGCONT
 *   AT[-AT] kill PROCESS [for SECONDS]     SIGKILL; a process that --max-restarts starts again is
 *                                          away for that time at least
 *   AT[-AT] cut HOST [for SECONDS]         its link is down
 *   AT[-AT] slow HOST RATE [for SECONDS]   its link has this rate in each direction
 *
 * AT is in seconds since the ranks were started; of two the time is drawn evenly between them.
 * PROCESS is rank1 or server0, HOST is host2, of the emulated network; rank*, server* and host*, of
 * the workers' hosts, are one of them, drawn.  Without SECONDS a fault lasts to the end of the job.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_FAULT_SCHEDULE_H
#define SPARRING_EXPERIMENTS_LAUNCH_FAULT_SCHEDULE_H

#include "common/base/error.h"
#include "experiments/network/network_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fault_action { FAULT_PAUSE, FAULT_KILL, FAULT_CUT, FAULT_SLOW };

struct scheduled_fault {
    enum fault_action action;
    char target[32];             /* "rank1" */
    size_t index;                /* of the child or the host */
    double rate;                 /* FAULT_SLOW: bit/s */
    int64_t begin_ns, length_ns; /* since the ranks were started; INT64_MAX: to the end */
};

/* What there is in a job. */
struct fault_targets {
    size_t servers, ranks;
    size_t hosts;                        /* 0: no emulated network */
    size_t worker_hosts;                 /* the first of them */
    const struct network_link *links;    /* of the hosts; borrowed */
    bool servers_restart, ranks_restart; /* one that was killed is started again */
};

struct fault_schedule {
    struct scheduled_fault *faults; /* owned; in the order of the file */
    size_t length, capacity;
    bool changes_links;
};

/* path "": no faults.  STATUS_NOT_FOUND, STATUS_IO, or STATUS_CONFIG with the number of a bad line.
 * The same seed draws the same again. */
enum status fault_schedule_read(const char *path, uint64_t seed,
                                const struct fault_targets *targets, struct fault_schedule *ret,
                                struct error *err);
void fault_schedule_release(struct fault_schedule *s);

/* "pause" */
const char *fault_action_name(enum fault_action action);

#endif
