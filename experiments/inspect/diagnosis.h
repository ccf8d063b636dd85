/*
 * diagnosis: computed from the evidence alone.  Pure: no input, no output.
 *
 * Culprit.  A failed run's recorders name a fault and a culprit; the survivors normally agree, so
 * the most frequent pair is taken, and the number of recorders that differ is kept.  The culprit's
 * own recorder gives its position: in an operation that it had begun, or before the one in which
 * the others failed.
 *
 * Desync.  Operations of one group and generation are matched by sequence number; the first that
 * two ranks recorded differently is reported.
 *
 * Waiting.  In an operation that all ranks ended, each waited from its own start to the last one's.
 */
#ifndef SPARRING_EXPERIMENTS_INSPECT_DIAGNOSIS_H
#define SPARRING_EXPERIMENTS_INSPECT_DIAGNOSIS_H

#include "experiments/inspect/evidence.h"

enum run_ending {
    ENDING_OK,        /* all ranks ended well */
    ENDING_SHRUNK,    /* ranks were lost, the others ended well */
    ENDING_RUNNING,   /* not ended */
    ENDING_FAILED,    /* a rank recorded an error, or is gone without an end record */
    ENDING_CANCELLED, /* stopped by a signal */
};

struct waiting {
    double waited_ms; /* wait of this rank for the last one to start, over all matched operations */
    double caused_ms; /* wait of the other ranks, over operations that this one started last */
    size_t last_count; /* operations in which it started last */
};

struct difference { /* the first operation in which ranks differ */
    bool found;
    unsigned ranks[2];
    struct flight_entry entries[2]; /* as each rank recorded it */
};

struct diagnosis {
    enum run_ending ending;
    enum fault fault;                      /* FAULT_NONE: not known */
    int culprit;                           /* rank of the job; -1: not known */
    const struct flight_entry *failed_at;  /* the survivors' operation; NULL: none */
    const struct flight_entry *culprit_at; /* the culprit's newest operation; NULL: no record */
    double waited_seconds;                 /* the longest that a survivor waited in it */
    const char *reason;                    /* error text of a rank; borrowed; "": none */
    int reason_rank;                       /* that rank; -1: none */
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

/* The operation in which the rank waited when the job failed, or (of a job that has not) when a
 * rank was lost; NULL: none.  Of a failed job those of a loss without which it went on do not
 * count. */
const struct flight_entry *diagnosis_failed_operation(const struct evidence_rank *r,
                                                      enum run_ending ending);

const char *flight_state_name(enum flight_state state); /* "running" */

#endif
