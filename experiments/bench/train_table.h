/*
 * train_table: the rows of `sparring bench train`, printed and written (METRICS.md defines them).
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_TRAIN_TABLE_H
#define SPARRING_EXPERIMENTS_BENCH_TRAIN_TABLE_H

#include "experiments/bench/bench_report.h"
#include "experiments/bench/train_jobs.h"

/* Two tables of a model whose jobs have run, on stdout, and its rows. */
void train_table_report(const struct train_jobs *c, const struct train_model *m,
                        struct bench_report *out);

#endif
