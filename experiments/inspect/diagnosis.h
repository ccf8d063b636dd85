/*
 * diagnosis: what the evidence says.  Pure: no input, no output.
 *
 * Verdict.  A failed run's recorders name a fault and a culprit; the survivors agree, so the most
 * frequent pair is taken, and what others say is kept.  Where the culprit was is read from its own
 * recorder: in an operation that it had begun, or before the one that the others failed in.
 * Desync.  Operations of one group and generation are matched by sequence number; the first that
 * two ranks describe differently is the one to look at.
 * Waiting.  In an operation that all ranks ended, each waited from its own start to the last one's.
 */
#ifndef SPARRING_EXPERIMENTS_INSPECT_DIAGNOSIS_H
#define SPARRING_EXPERIMENTS_INSPECT_DIAGNOSIS_H

#include "experiments/inspect/evidence.h"

enum run_ending {
    ENDING_OK,        /* all ranks ended well */
    ENDING_SHRUNK,    /* ranks were lost, the others ended well */
    ENDING_RUNNING,   /* not over */
    ENDING_FAILED,    /* some rank said why, or is gone without a word */
    ENDING_CANCELLED, /* told to stop */
};

struct waiting {
    double waited_ms;  /* of this rank, for the last to start; all matched operations */
    double caused_ms;  /* summed over the other ranks, where this one started last */
    size_t last_count; /* operations in which it started last */
};

struct difference { /* the first operation in which ranks differ */
    bool found;
    unsigned ranks[2];
    struct flight_entry entries[2]; /* as each describes it */
};

struct diagnosis {
    enum run_ending ending;
    enum fault fault;                      /* FAULT_NONE: not known */
    int culprit;                           /* rank of the job; -1: not known */
    const struct flight_entry *failed_at;  /* the survivors' operation; NULL: none */
    const struct flight_entry *culprit_at; /* the culprit's newest operation; NULL: no record */
    double waited_seconds;                 /* the longest that a survivor waited in it */
    const char *reason;                    /* in a rank's own words; borrowed, "" none */
    int reason_rank;                       /* whose words; -1: none */
    unsigned disagreeing;                  /* recorders that name another fault or culprit */
    struct difference difference;
    struct waiting *waiting; /* owned; by rank */
    size_t matched;          /* operations that all ranks with a recorder ended */
};

/* The diagnosis borrows from the evidence. */
enum status diagnosis_make(const struct evidence *e, struct diagnosis *ret, struct error *err);
void diagnosis_release(struct diagnosis *d);

/* "rank 2 died in all_reduce #812 (bucket 2 of 5, 1.2 of 26.2 MB)" */
void diagnosis_sentence(const struct diagnosis *d, char *text, size_t size);

const char *flight_state_name(enum flight_state state); /* "running" */

#endif
