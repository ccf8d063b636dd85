/*
 * train_contest: the jobs of `sparring bench train`.  Every contender is a launched job of real
 * worker processes; the contenders of a model take turns within each repeat, so that a drifting
 * machine hits all alike, and ratios are taken within a repeat.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_TRAIN_CONTEST_H
#define SPARRING_EXPERIMENTS_BENCH_TRAIN_CONTEST_H

#include "common/option/option.h"
#include "experiments/bench/bench_report.h"

#include <stddef.h>
#include <stdint.h>

#define CONTENDERS_MAX 16
#define MODELS_MAX     8

struct train_options {
    char model[OPTION_TEXT_MAX]; /* SPEC[@BATCH[@STEPS]],... */
    int64_t batch_size, nproc, servers, steps, repeats, threads, timeout_ms;
    char sync[OPTION_TEXT_MAX];
    char backend[OPTION_TEXT_MAX];      /* NAME,... */
    char ps_transport[OPTION_TEXT_MAX]; /* NAME,... */
    char device[OPTION_TEXT_MAX];
    char peer[OPTION_TEXT_MAX];
    char peer_script[OPTION_TEXT_MAX];
    char json[OPTION_TEXT_MAX];
};

struct train_model {
    char spec[256];
    char data[64]; /* data that fits it */
    int64_t batch_size, steps;
};

/* One job's figures; NAN where it has none. */
struct train_figures {
    double step_ms;    /* median steady step of rank 0 */
    double comm_ms;    /* likewise: communication, hidden or not */
    double exposed_ms; /* likewise: the part that backward does not hide */
};

struct contender {
    const char *sync; /* "local", "allreduce", "ps", "torch-local", "torch-ddp" */
    char backend[32];
    size_t control;             /* index of the contender without communication */
    struct train_figures *jobs; /* owned; one per repeat */
};

struct train_contest {
    const struct train_options *options;
    struct train_model models[MODELS_MAX];
    size_t model_count;
    struct contender contenders[CONTENDERS_MAX];
    size_t length;
    char bin[1024];    /* folder of our programs */
    char folder[1024]; /* temporary: a run directory and a log per job */
};

/* STATUS_INVALID, STATUS_CONFIG for options that name no model, backend or way to synchronise. */
enum status train_contest_open(struct train_contest *c, const struct train_options *options,
                               struct error *err);

/* All contenders, all repeats of one model. */
enum status train_contest_run(struct train_contest *c, size_t model, struct error *err);

/* After a failure the logs stay for reading. */
void train_contest_close(struct train_contest *c, enum status how);

#endif
