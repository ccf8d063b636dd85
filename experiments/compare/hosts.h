/*
 * hosts: of an engine, for the blocks of an experiment: how many a mode takes, and in which order a
 * block uses them.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_HOSTS_H
#define SPARRING_EXPERIMENTS_COMPARE_HOSTS_H

#include "common/base/strbuf.h"
#include "experiments/compare/experiment.h"

/* Hosts with ranks, and one for each server that stands alone. */
size_t hosts_of_mode(const struct experiment *e, const struct experiment_mode *mode);

/* The most that a mode takes. */
size_t hosts_needed(const struct experiment *e);

/* Append "n3,n1,...": the first `count` in an order that is drawn from the experiment's seed and
 * the block, so that differences between hosts do not pass for differences between modes. */
void hosts_draw(const struct experiment *e, const struct text_list *hosts, size_t block,
                size_t count, struct strbuf *text);

#endif
