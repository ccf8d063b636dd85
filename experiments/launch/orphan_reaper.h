/*
 * orphan_reaper: a process that outlives the launcher and kills the process groups that it started.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_ORPHAN_REAPER_H
#define SPARRING_EXPERIMENTS_LAUNCH_ORPHAN_REAPER_H

#include "common/base/error.h"

#include <stddef.h>
#include <sys/types.h>

struct orphan_reaper {
    pid_t pid; /* 0: none */
    int fd;    /* write side of the pipe to it; the reaper acts when it is closed; -1: none */
};

/* Fork the reaper, with room for `groups` process groups.  The caller has blocked its signals. */
enum status orphan_reaper_open(struct orphan_reaper *k, size_t groups, struct error *err);

/* Register a group to be killed when the launcher is gone; called in the child before exec, as the
 * leader of the group.  Async-signal-safe. */
void orphan_reaper_add(const struct orphan_reaper *k, pid_t group);

/* Remove an empty group: the kernel may reuse its number. */
void orphan_reaper_forget(const struct orphan_reaper *k, pid_t group);

/* End the reaper and wait for it.  Safe on a zeroed struct with fd -1. */
void orphan_reaper_close(struct orphan_reaper *k);

#endif
