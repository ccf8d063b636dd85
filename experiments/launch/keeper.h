/*
 * keeper: a small process that outlives the launcher by a moment, to kill what it started.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_KEEPER_H
#define SPARRING_EXPERIMENTS_LAUNCH_KEEPER_H

#include "common/base/error.h"

#include <stddef.h>
#include <sys/types.h>

struct keeper {
    pid_t pid; /* 0: none */
    int fd;    /* pipe to it; its end is what the keeper waits for; -1: none */
};

/* Fork the keeper, with room for `groups` process groups.  The caller has blocked its signals. */
enum status keeper_open(struct keeper *k, size_t groups, struct error *err);

/* In a child, before exec and as the leader of its group: have the group killed when the launcher
 * is gone. Async-signal-safe. */
void keeper_add(const struct keeper *k, pid_t group);

/* The group is empty: its number may belong to someone else soon. */
void keeper_forget(const struct keeper *k, pid_t group);

/* Let it end, and wait for that.  Safe on a zeroed struct with fd -1. */
void keeper_close(struct keeper *k);

#endif
