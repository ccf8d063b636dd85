/*
 * succession_model: a model of a primary, its replica and up to three workers that calls the real
 * functions of succession, with all events that can happen to them.
 *
 * A message is a permanent fact of its sender's state; it is delivered at any later time, any
 * number of times, or never: so losses, delays, repetitions, reordering, partitions and paused
 * servers are all among the runs.  The primary may also crash and restart from its disk: its
 * history, the ranks that have left and, unless it was alone, no stream to its replica.  A
 * restarted replica equals a paused one.
 *
 * A history consists of entries: steps and one change of membership (worker 0's session ends); each
 * entry is marked with the server that created it.
 */
#ifndef SPARRING_TESTS_COMMON_SUCCESSION_SUCCESSION_MODEL_H
#define SPARRING_TESTS_COMMON_SUCCESSION_SUCCESSION_MODEL_H

#include "common/succession/succession.h"
#include "tests/support/explore.h"

#define WORKERS_MAX 3u
#define STEPS_MAX   2u
#define ENTRIES_MAX (STEPS_MAX + 1)
#define NEVER       UINT8_MAX

/* One server's history: `length` entries; which of them the replica created, and which one, if any,
 * ends the session of worker 0. */
struct history {
    uint8_t length, own, vacates; /* own: mask of entries; vacates: index or NEVER */
};

struct worker {
    uint8_t vote;      /* enum succession_vote */
    uint8_t at;        /* 0 the primary, 1 the replica */
    uint8_t asks;      /* its request to the replica: 1 to follow others, 2 to take over */
    uint8_t left;      /* in order, after its last step */
    uint8_t pushed;    /* newest step that it has sent a push of to the primary */
    struct history is; /* the history acknowledged to it */
};

/* Compared as bytes: no padding, nothing but uint8_t.  Masks have one bit per worker. */
struct state {
    uint8_t role, settled, acknowledged; /* the primary's; acknowledged: entries, by the replica */
    uint8_t primary_sum;                 /* mask of workers that have pushed to its next step */
    uint8_t restarted;    /* the primary: no stream from its replica, but it can query it */
    uint8_t forgot_alone; /* and that it was alone */
    struct history primary;
    uint8_t promoted, taken; /* the replica's; taken: entries from the primary's records */
    uint8_t joined;          /* mask of workers that have joined the replica */
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
    bool vacates;  /* the session of worker 0 may end */
    bool progress; /* false: safety */
};

extern struct world world;

/* A state that one event leads to; of the test. */
void visit(const struct state *s);

/* The initial state. */
void model_start(struct state *s);

/* Visit every state that one event leads to from `from`: actions of servers and workers, failures.
 */
void model_move(const struct state *from);
void model_fail(const struct state *from);

bool model_lives(const struct state *s, unsigned bit);

/* ---- histories ---- */

unsigned model_steps(const struct history *h);

/* Is `less` a prefix of `more`? */
bool model_is_part(const struct history *less, const struct history *more);

/* The membership change has taken effect: the replica has it, or the primary is alone. */
bool model_is_vacant(const struct state *s);

#endif
