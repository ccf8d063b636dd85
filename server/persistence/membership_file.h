/*
 * membership_file: the text form of a job's membership, by which it outlives its server.
 *
 *   epoch 3
 *   role alone
 *   rank 0 in 00c0ffee00c0ffee
 *   rank 1 out 0123456789abcdef
 *
 * The epoch, this server's role (enum job_role), then one line per rank, in order: "in" for a rank
 * that is joined (also while it is away), "out" for one that has left or is vacant; then the
 * session that holds the rank, or held it last.  Pure.  Called by: persistence.c and the service's
 * restore.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_MEMBERSHIP_FILE_H
#define SPARRING_SERVER_PERSISTENCE_MEMBERSHIP_FILE_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "server/job/job.h"

#include <stdbool.h>
#include <stdint.h>

struct membership_file_rank {
    bool is_joined;
    uint64_t session;
};

struct membership_file {
    uint64_t epoch;
    enum job_role role;
    const struct membership_file_rank *ranks; /* borrowed */
    unsigned world_size;
};

void membership_file_write(struct strbuf *out, const struct membership_file *r);

/* Parse the text for world_size ranks into ret_ranks, to which ret->ranks then points.  Anything
 * that membership_file_write would not write is STATUS_DATA. */
enum status membership_file_parse(const char *text, unsigned world_size,
                                  struct membership_file *ret,
                                  struct membership_file_rank *ret_ranks, struct error *err);

#endif
