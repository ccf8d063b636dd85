/*
 * policy_model: a simple reference model of the policy.  It stores which rank did what and decides
 * by the definitions of the modes.  Used by test_policy_elastic.c.
 */
#ifndef SPARRING_TESTS_SERVER_SHARD_POLICY_MODEL_H
#define SPARRING_TESTS_SERVER_SHARD_POLICY_MODEL_H

#include "server/shard/policy.h"
#include "tests/support/explore.h"

#define RANKS_MAX 4u

/* Masks have one bit per rank.  Kept without padding, so that states can be compared as bytes. */
struct model {
    uint8_t set;
    uint8_t asked, got;            /* round 0, by the rank's present session */
    uint8_t unknown;               /* the server was restored: they may have round 0 */
    uint8_t waiting;               /* for the reply to a contribution */
    uint8_t finished, wants_final; /* contributes no more; waits for the final values */
    uint8_t vacant;
    uint8_t arrived;          /* in rounds: ranks that have contributed to the round under way */
    uint8_t inherited;        /* lockstep: only the rank's last session has contributed to it */
    uint8_t clock[RANKS_MAX]; /* last round that the rank contributed to, or started after */
    uint8_t steps;
};

/* The configuration that is explored. */
struct world {
    struct consistency consistency;
    unsigned ranks, rounds;
    bool finish, crash; /* with these events */
};

extern struct world world;

uint8_t model_all(void);
uint8_t model_present(const struct model *m); /* ranks that are neither vacant nor finished */
bool model_in_rounds(void);                   /* in rounds, as opposed to each push a step */

/* Is the round under way complete?  model_complete ends it and returns its contributions, or 0. */
bool model_is_complete(const struct model *m);
unsigned model_complete(struct model *m);

/* May a rank that has contributed up to its clock read the current values? */
bool model_may_read(const struct model *m, unsigned rank);

enum policy_outcome model_check(const struct model *m, unsigned rank, unsigned round, bool again);
enum policy_outcome model_push(struct model *m, unsigned rank, unsigned round, bool again,
                               unsigned *ret_contributions);

/* The clock of a new session: the round under way follows, or the slowest other rank's next one. */
uint8_t model_start(const struct model *m, unsigned rank);

/* Drop the state of the rank's last session. */
void model_forget(struct model *m, unsigned rank);

/* In lockstep a new session has to read and contribute before the round can complete. */
void model_inherit(struct model *m, unsigned rank);

#endif
