/*
 * experiment_set: several experiments by one command, and the page that links their reports.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_EXPERIMENT_SET_H
#define SPARRING_EXPERIMENTS_COMPARE_EXPERIMENT_SET_H

#include "common/base/error.h"
#include "common/base/text_list.h"

#include <stddef.h>

#define EXPERIMENT_SET_ALL     "all"
#define EXPERIMENT_SET_DEFAULT "quickstart"

/* The paths of these experiments (find_experiment.h); "all": of every file that comes with
 * Sparring.  The caller releases *ret, also after a failure. */
enum status experiment_set_find(const char *const *names, size_t count, const char *programs,
                                struct text_list *ret, struct error *err);

/* "scaling" for ".../scaling.yaml": its folder in that of the set. */
void experiment_set_name(const char *path, char *text, size_t size);

/* Write FOLDER/index.html: for each experiment a link to its report and its result, texts in the
 * order of the paths. */
enum status experiment_set_write(const char *folder, const struct text_list *paths,
                                 const struct text_list *results, struct error *err);

#endif
