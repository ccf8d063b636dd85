/*
 * membership_file: who holds the slots of a job, as text: what of a membership outlives its server.
 *
 *   epoch 3
 *   role alone
 *   rank 0 in 00c0ffee00c0ffee
 *   rank 1 out 0123456789abcdef
 *
 * The role among the servers that keep the shard (common/succession), then one line per rank, in
 * order: "in" of those that take part (also while they are away), "out" of
 * those that have left or whose slot is vacant; then the session that holds the slot, or held it
 * last.  Pure.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_MEMBERSHIP_FILE_H
#define SPARRING_SERVER_PERSISTENCE_MEMBERSHIP_FILE_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "server/job/job.h"

#include <stdbool.h>
#include <stdint.h>

struct membership_file_rank {
    bool in;
    uint64_t session;
};

struct membership_file {
    uint64_t epoch;
    enum job_role role;
    const struct membership_file_rank *ranks; /* borrowed */
    unsigned world_size;
};

void membership_file_write(struct strbuf *out, const struct membership_file *r);

/* Read what membership_file_write has written for world_size ranks, into ret_ranks, which
 * ret->ranks is then; anything else is STATUS_DATA. */
enum status membership_file_parse(const char *text, unsigned world_size,
                                  struct membership_file *ret,
                                  struct membership_file_rank *ret_ranks, struct error *err);

#endif
