/*
 * options_tables: the worker's option tables, by subject.  Included by worker/options/options*.c
 * only.
 */
#ifndef SPARRING_WORKER_OPTIONS_OPTIONS_TABLES_H
#define SPARRING_WORKER_OPTIONS_OPTIONS_TABLES_H

#include "worker/options/options.h"

#include <stddef.h>

#define AT(field) offsetof(struct worker_options, field)

extern const struct option_spec worker_job_specs[];
extern const struct option_spec worker_sync_specs[];
extern const struct option_spec worker_ps_specs[];

#endif
