/*
 * succession_model: a primary, its replica and up to three workers, with the real rules of
 * succession deciding, and all that can happen to them.
 *
 * A message is a fact that its sender has made true for good; it is delivered at any later moment,
 * as often as one likes, or never: so losses, delays, repeats, any order, partitions and servers
 * that stop and wake up are all among the runs.  The primary may also die and be started again,
 * with what it left on its disk: its history, who has left and, unless it was alone, no stream to
 * its replica any more.  The replica, started again, is as if it had slept.
 *
 * A history is made of entries, steps and one change of membership (the slot of worker 0 becomes
 * vacant); each entry is marked with the server that made it.
 */
#ifndef SPARRING_TESTS_COMMON_SUCCESSION_SUCCESSION_MODEL_H
#define SPARRING_TESTS_COMMON_SUCCESSION_SUCCESSION_MODEL_H

#include "common/succession/succession.h"
#include "tests/support/explore.h"

#define WORKERS_MAX 3u
#define STEPS_MAX   2u
#define ENTRIES_MAX (STEPS_MAX + 1)
#define NEVER       UINT8_MAX

/* One server's history: `length` entries; which are the replica's own, and which, if any, vacates
 * the slot of worker 0. */
struct history {
    uint8_t length, own, vacates; /* own: mask of entries; vacates: index or NEVER */
};

struct worker {
    uint8_t vote;      /* enum succession_vote */
    uint8_t at;        /* 0 the primary, 1 the replica */
    uint8_t asks;      /* the replica: 1 to follow others, 2 to take over */
    uint8_t left;      /* in order, behind its last step */
    uint8_t pushed;    /* newest step that it has sent a push of to the primary */
    struct history is; /* what it has been told */
};

/* Compared as bytes: no padding, nothing but uint8_t.  Masks have one bit per worker. */
struct state {
    uint8_t role, settled, acknowledged; /* the primary's; acknowledged: entries, by the replica */
    uint8_t primary_sum;                 /* who has pushed to its next step */
    uint8_t restarted; /* the primary: it hears its replica no more, but asks it */
    uint8_t forgot;    /* and that it was alone */
    struct history primary;
    uint8_t promoted, taken; /* the replica's; taken: entries from the primary's records */
    uint8_t joined;          /* who has come to the replica */
    uint8_t replica_sum;
    struct history replica;
    uint8_t dead;     /* progress: workers; then primary, replica */
    uint8_t cut;      /* progress: worker k - primary, worker k - replica, primary - replica */
    uint8_t failures; /* progress */
    struct worker workers[WORKERS_MAX];
};

#define DEAD_PRIMARY (1u << WORKERS_MAX)
#define DEAD_REPLICA (2u << WORKERS_MAX)
#define CUT_PRIMARY  0u          /* + worker */
#define CUT_REPLICA  WORKERS_MAX /* + worker */
#define CUT_SERVERS  (2 * WORKERS_MAX)

struct world {
    unsigned workers, steps;
    bool vacates;  /* the slot of worker 0 may become vacant */
    bool progress; /* else safety */
};

extern struct world world;

/* A state that one event leads to; of the test. */
void visit(const struct state *s);

/* Nothing has happened yet. */
void model_start(struct state *s);

/* Visit whatever one event makes of `from`: what servers and workers do, and what fails. */
void model_move(const struct state *from);
void model_fail(const struct state *from);

bool model_lives(const struct state *s, unsigned bit);

/* ---- histories ---- */

unsigned model_steps(const struct history *h);

/* Has `more` all that `less` has, as it has it? */
bool model_is_part(const struct history *less, const struct history *more);

/* The vacancy is in force: the replica has it, or nobody else counts. */
bool model_is_vacant(const struct state *s);

#endif
