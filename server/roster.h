/*
 * roster: who holds the slots of a job, as text: what of a membership outlives its server.
 *
 *   epoch 3
 *   rank 0 in 00c0ffee00c0ffee
 *   rank 1 out 0123456789abcdef
 *
 * One line per rank, in order: "in" of those that take part (also while they are away), "out" of
 * those that have left or whose slot is vacant; then the session that holds the slot, or held it
 * last.  Pure.
 */
#ifndef SPARRING_SERVER_ROSTER_H
#define SPARRING_SERVER_ROSTER_H

#include "common/base/error.h"
#include "common/base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

struct roster_rank {
    bool in;
    uint64_t session;
};

void roster_write(struct strbuf *out, uint64_t epoch, const struct roster_rank *ranks,
                  unsigned world_size);

/* Read what roster_write has written for world_size ranks; anything else is STATUS_DATA. */
enum status roster_parse(const char *text, unsigned world_size, uint64_t *ret_epoch,
                         struct roster_rank *ret_ranks, struct error *err);

#endif
