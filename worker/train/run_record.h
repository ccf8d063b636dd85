/*
 * run_record: what one rank leaves in the run directory: rank<r>.jsonl, and from rank 0
 * manifest.json and summary.json.  The figures are defined in experiments/METRICS.md.
 */
#ifndef SPARRING_WORKER_TRAIN_RUN_RECORD_H
#define SPARRING_WORKER_TRAIN_RUN_RECORD_H

#include "common/metrics/metrics.h"
#include "common/tensor/tensor.h"
#include "worker/options/options.h"

struct run_record {
    const char *folder; /* NULL: nothing is written; borrowed */
    char id[128];       /* of the run: name of the folder, or "run" */
    unsigned rank;
    bool is_chief; /* writes the manifest and the summary: the lowest rank that is left */
    struct metrics metrics;
    double *step_seconds;        /* owned; one per step, for the medians, as step_samples */
    double *step_samples;        /* owned */
    size_t steps;                /* of the run so far */
    size_t capacity;             /* of the two tables, which a longer run goes round */
    uint64_t tx_first, rx_first; /* payload bytes of the first step, to show that all steps agree */
    bool uneven_bytes;           /* some step moved other payload than the first */
    double started_wall;
    char started[32]; /* the same as text */
};

/* Facts of the run for the manifest and the summary. */
struct run_facts {
    const struct worker_options *options;
    const struct option_result *origins;
    const struct launch_env *launch;
    const struct tensor_table *table;
    uint64_t model_flops; /* per sample, forward and backward */
    const char *device;
    const char *sync_detail; /* what carries the bytes: "shm", "ring", "grpc", "none"; until the
                                synchronisation is open, what was asked for */
    size_t partition_bytes;  /* of ps, as used */
    const char *store_address;
};

/* What the training came to. */
struct run_outcome {
    const char *status; /* "ok", or the failure's status name */
    const char *text;   /* "" or the failure's text */
    uint64_t epochs;
    double last_loss;
    bool evaluated;
    double test_loss, test_accuracy;
    double samples_per_second;         /* all ranks together */
    uint64_t expected_tx, expected_rx; /* payload bytes per step by the formula; UINT64_MAX: none */
    uint64_t tx_wire, rx_wire;         /* of the whole run, this rank */
    uint64_t graph_launches;           /* steps that were one launch of a GPU */
    uint64_t peak_device_bytes;        /* of the device's own memory; 0: it has none */
    uint64_t device_tx, device_rx;     /* over its bus, to it and from it; 0: there is none */
    bool scales_gradients;             /* fp16: the next two mean something */
    uint64_t overflowed_updates;       /* that were left out, in the whole run */
    double gradient_scale;             /* in the end */
    uint64_t parameters_hash;          /* FNV-1a over the final bytes; 0: the run failed */
    unsigned recoveries;               /* after losses of ranks ... */
    const unsigned *lost;              /* ... which were these; borrowed */
    unsigned lost_count;
    uint64_t samples_lost;               /* that nobody saw for it */
    uint64_t skipped_steps;              /* made by the others while this rank was late */
    uint64_t tx_reference, rx_reference; /* payload that stayed in shared memory */
    uint64_t takeovers;                  /* of servers by their replicas */
    uint64_t reconnects;                 /* of lost connections to servers ... */
    double away_seconds;                 /* ... which took so long, summed ... */
    uint64_t retries;                    /* ... and for which so many chunks were sent once more */
};

/* Makes the folder and opens rank<r>.jsonl; max_steps sizes the tables of step times. */
enum status run_record_open(struct run_record *r, const struct run_facts *facts, size_t max_steps,
                            struct error *err);
/* Write manifest.json again with new facts; run_record_open wrote it, too. */
enum status run_record_manifest(struct run_record *r, const struct run_facts *facts,
                                struct error *err);
enum status run_record_step(struct run_record *r, const struct step_record *step,
                            struct error *err);
enum status run_record_evaluation(struct run_record *r, uint64_t epoch, double loss,
                                  double accuracy, struct error *err);

/* Of the steady steps (all but the first max(5, 10 %)): their samples over their time, and their
 * median time; 0 without steps. */
double run_record_samples_per_second(const struct run_record *r);

/* The "end" record of this rank and, from rank 0, summary.json. */
enum status run_record_finish(struct run_record *r, const struct run_facts *facts,
                              const struct run_outcome *outcome, struct error *err);
/* Somebody has written it in this run. */
bool run_record_has_summary(const struct run_record *r);
void run_record_close(struct run_record *r);

#endif
