/*
 * train_jobs: the jobs of `sparring bench train`.  Every contender is a launched job of real worker
 * processes; the contenders of a model take turns within each repeat, so that drift of the machine
 * affects all alike, and ratios are taken within a repeat.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_TRAIN_JOBS_H
#define SPARRING_EXPERIMENTS_BENCH_TRAIN_JOBS_H

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
    char bind[OPTION_TEXT_MAX];         /* of launch */
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
    char not_measured[256];     /* why it was not measured; "": it was */
};

struct train_jobs {
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
const struct contender *train_jobs_find(const struct train_jobs *c, const char *sync);

/* STATUS_INVALID, STATUS_CONFIG for options that name no model, backend or way to synchronise. */
enum status train_jobs_open(struct train_jobs *c, const struct train_options *options,
                            struct error *err);

/* Measure the rate of matrix products on this device, in all ranks at once: c->ceiling. */
enum status train_jobs_ceiling(struct train_jobs *c, struct error *err);

/* All contenders, all repeats of one model.  One that cannot be measured here (no torch.compile)
 * says so in `not_measured`. */
enum status train_jobs_run(struct train_jobs *c, size_t model, struct error *err);

/* After a failure the folder with the logs is kept; after success or a stop it is removed. */
void train_jobs_close(struct train_jobs *c, enum status how);

#endif
