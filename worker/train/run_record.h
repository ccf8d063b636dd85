/*
 * run_record: the files of one rank in the run directory: rank<r>.jsonl, and from rank 0
 * manifest.json and summary.json.  experiments/METRICS.md defines the figures.
 * Called by the trainer, the training loop, overlap and finish.  Threads: the training thread.
 */
#ifndef SPARRING_WORKER_TRAIN_RUN_RECORD_H
#define SPARRING_WORKER_TRAIN_RUN_RECORD_H

#include "common/metrics/metrics.h"
#include "common/tensor/tensor.h"
#include "worker/options/options.h"
#include "worker/train/link_rate.h"

struct run_record {
    const char *folder; /* NULL: nothing is written; borrowed */
    char id[128];       /* of the run: name of the folder, or "run" */
    unsigned rank;
    bool is_chief; /* the lowest rank left: writes the manifest and the summary */
    struct metrics metrics;
    double *step_seconds;        /* owned; (capacity), one per step, like step_samples */
    double *step_samples;        /* owned */
    size_t steps;                /* of the run so far */
    size_t capacity;             /* of the two tables; a longer run overwrites the oldest */
    uint64_t tx_first, rx_first; /* payload bytes of the first step, compared with later ones */
    bool uneven_bytes;           /* some step moved another payload than the first */
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
    const char *sync_detail;    /* the transport: "shm", "ring", "grpc", "none"; until the
                                   synchronisation is open, the requested one */
    size_t partition_bytes;     /* of ps, as used */
    struct link_rate link_rate; /* between hosts */
    const char *store_address;
};

/* The result of the run. */
struct run_end {
    const char *status; /* "ok", or the failure's status name */
    const char *text;   /* "" or the failure's text */
    uint64_t epochs;
    double last_loss;
    bool evaluated;
    bool is_last_recorded; /* an evaluation after the last step, before the others have ended */
    double test_loss, test_accuracy;
    double samples_per_second;         /* all ranks together */
    uint64_t expected_tx, expected_rx; /* payload bytes per step by the formula; UINT64_MAX: none */
    uint64_t tx_wire, rx_wire;         /* of the whole run, this rank */
    uint64_t tx_queued;                /* likewise */
    uint64_t graph_launches;           /* steps launched as one CUDA graph */
    uint64_t peak_device_bytes;        /* of the device's own memory; 0: it has none */
    uint64_t device_tx, device_rx;     /* bytes over the device's bus, to and from it; 0: no bus */
    bool scales_gradients;             /* fp16: the next two are valid */
    uint64_t overflowed_updates;       /* updates left out, in the whole run */
    double gradient_scale;             /* at the end */
    double steps_cpu_seconds;          /* processor time from the first step to the last */
    double processor_wait;             /* share of the time from the first step to the last in which
                                          a thread waited for a processor; NaN: not known */
    uint64_t parameters_hash;          /* FNV-1a over the final bytes; 0: the run failed */
    unsigned recoveries;               /* from losses of ranks ... */
    const unsigned *lost;              /* ... namely these; borrowed */
    unsigned lost_count;
    uint64_t samples_lost;               /* skipped because of the losses */
    uint64_t skipped_steps;              /* updates made without this rank, which was late */
    uint64_t tx_reference, rx_reference; /* payload that stayed in shared memory */
    uint64_t takeovers;                  /* of servers by their replicas */
    uint64_t reconnects;                 /* of lost connections to servers ... */
    double away_seconds;                 /* ... the sum of their durations ... */
    uint64_t retries;                    /* ... and the chunks sent again because of them */
};

/* Create the folder, open rank<r>.jsonl and write manifest.json; max_steps sizes the tables of step
 * times. */
enum status run_record_open(struct run_record *r, const struct run_facts *facts, size_t max_steps,
                            struct error *err);
/* Write manifest.json again with new facts. */
enum status run_record_manifest(struct run_record *r, const struct run_facts *facts,
                                struct error *err);
enum status run_record_step(struct run_record *r, const struct step_record *step,
                            struct error *err);
enum status run_record_evaluation(struct run_record *r, uint64_t epoch, double loss,
                                  double accuracy, struct error *err);

/* Samples over time of the steady steps (all but the first max(5, 10 %) and the last); 0 without
 * steps. */
double run_record_samples_per_second(const struct run_record *r);

/* The "end" record of this rank and, from rank 0, summary.json. */
enum status run_record_finish(struct run_record *r, const struct run_facts *facts,
                              const struct run_end *outcome, struct error *err);
/* Whether summary.json exists: run_record_open removes that of an earlier run. */
bool run_record_has_summary(const struct run_record *r);
void run_record_close(struct run_record *r);

#endif
