/*
 * train_contest: the jobs of `sparring bench train`.  Every contender is a launched job of real
 * worker processes; the contenders of a model take turns within each repeat, so that a drifting
 * machine hits all alike, and ratios are taken within a repeat.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_TRAIN_CONTEST_H
#define SPARRING_EXPERIMENTS_BENCH_TRAIN_CONTEST_H

#include "common/option/option.h"
#include "experiments/bench/train_figures.h"
#include "experiments/bench/train_model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONTENDERS_MAX 16
#define MODELS_MAX     8

struct train_options {
    char model[OPTION_TEXT_MAX]; /* SPEC[@BATCH[@STEPS]],... */
    int64_t batch_size, nproc, servers, steps, repeats, threads, timeout_ms;
    bool no_ceiling;
    char sync[OPTION_TEXT_MAX];
    char backend[OPTION_TEXT_MAX];      /* NAME,... */
    char ps_transport[OPTION_TEXT_MAX]; /* NAME,... */
    char optimizer[OPTION_TEXT_MAX];
    char device[OPTION_TEXT_MAX];
    char precision[OPTION_TEXT_MAX];
    char peer[OPTION_TEXT_MAX];
    char peer_script[OPTION_TEXT_MAX];
    char json[OPTION_TEXT_MAX];
};

struct contender {
    const char *sync; /* "local", "allreduce", "ps", "torch-local", "torch-compile", "torch-ddp" */
    char backend[32];
    size_t control;             /* index of the contender without communication */
    struct train_figures *jobs; /* owned; one per repeat */
    char absent[256];           /* why it was not measured; "": it was */
};

struct train_contest {
    const struct train_options *options;
    struct train_model models[MODELS_MAX];
    size_t model_count;
    struct contender contenders[CONTENDERS_MAX];
    size_t length;
    double ceiling;    /* floating-point operations per second of each rank; NAN: not measured */
    char bin[1024];    /* folder of our programs */
    char folder[1024]; /* temporary: a run directory and a log per job */
    char peer_script[2048]; /* the one to run */
};

/* The contender of that name, NULL when there is none or it was not measured. */
const struct contender *train_contest_find(const struct train_contest *c, const char *sync);

/* STATUS_INVALID, STATUS_CONFIG for options that name no model, backend or way to synchronise. */
enum status train_contest_open(struct train_contest *c, const struct train_options *options,
                               struct error *err);

/* What matrix products reach on this device, in all ranks at once: c->ceiling. */
enum status train_contest_ceiling(struct train_contest *c, struct error *err);

/* All contenders, all repeats of one model.  One that cannot be measured here (no torch.compile)
 * says so in `absent`. */
enum status train_contest_run(struct train_contest *c, size_t model, struct error *err);

/* After a failure the logs stay for reading; after a stop nothing does. */
void train_contest_close(struct train_contest *c, enum status how);

#endif
