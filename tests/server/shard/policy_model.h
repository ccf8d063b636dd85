/*
 * policy_model: what the policy must decide, by a model that only remembers who did what.
 */
#ifndef SPARRING_TESTS_SERVER_SHARD_POLICY_MODEL_H
#define SPARRING_TESTS_SERVER_SHARD_POLICY_MODEL_H

#include "server/shard/policy.h"
#include "tests/support/explore.h"

#define RANKS_MAX 4u

/* Masks have one bit per rank.  Kept without padding, so that states can be compared as bytes. */
struct model {
    uint8_t set;
    uint8_t asked, got;            /* round 0, by who holds the slot now */
    uint8_t unknown;               /* the server was restored: they may have it */
    uint8_t waiting;               /* for the answer to a contribution */
    uint8_t finished, wants_final; /* contributes no more; waits for the final values */
    uint8_t vacant;
    uint8_t arrived;          /* together: who is in the round under way */
    uint8_t inherited;        /* lockstep: the slot's last holder is in it, this one has not read */
    uint8_t clock[RANKS_MAX]; /* last round that the slot contributed to, or was put at */
    uint8_t steps;
};

/* What is explored. */
struct world {
    struct consistency consistency;
    unsigned ranks, rounds;
    bool finish, crash; /* with these events */
};

extern struct world world;

uint8_t model_all(void);
uint8_t model_present(const struct model *m); /* who holds a slot and has not finished */
bool model_together(void);                    /* in rounds, as opposed to each a step */

/* Is the round under way whole?  Complete it if so: how many it took, or 0. */
bool model_is_whole(const struct model *m);
unsigned model_complete(struct model *m);

/* Of a slot that has contributed up to its clock: are the values there that it waits for? */
bool model_may_read(const struct model *m, unsigned rank);

enum policy_verdict model_check(const struct model *m, unsigned rank, unsigned round, bool again);
enum policy_verdict model_push(struct model *m, unsigned rank, unsigned round, bool again,
                               unsigned *ret_contributions);

/* Where a newcomer goes on: with the round under way, or behind the slowest of the others. */
uint8_t model_start(const struct model *m, unsigned rank);

/* Whoever held the slot has gone, and all that is known of him. */
void model_forget(struct model *m, unsigned rank);

/* In lockstep a newcomer has to read and contribute before the round can be complete. */
void model_inherit(struct model *m, unsigned rank);

#endif
