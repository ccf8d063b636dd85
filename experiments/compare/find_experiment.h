/*
 * find_experiment: finds the experiment files that come with Sparring.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_FIND_EXPERIMENT_H
#define SPARRING_EXPERIMENTS_COMPARE_FIND_EXPERIMENT_H

#include "common/base/error.h"

#include <stddef.h>

/* Path of an experiment file.  `name` is a path (with '/', or that ends in ".yaml"); or the bare
 * name of a file that comes with Sparring ("quickstart"): beside the programs in `folder`, in the
 * install tree (../share/sparring/experiments) or in the source tree of a build
 * (../../../experiments); or else of a file in the current folder.  STATUS_NOT_FOUND lists the
 * places. */
enum status find_experiment(const char *name, const char *folder, char *ret_path, size_t size,
                            struct error *err);

#endif
