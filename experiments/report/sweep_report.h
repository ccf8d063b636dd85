/*
 * sweep_report: the reports of all cells of a sweep, and its overview.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_SWEEP_REPORT_H
#define SPARRING_EXPERIMENTS_REPORT_SWEEP_REPORT_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* Does `folder` hold the cells of a sweep (folder/cells)? */
bool sweep_report_is_folder(const char *folder);

/* Write the report of every cell of folder/cells that has runs, in natural order, then
 * folder/index.html and folder/cells.csv, and print who wins where. */
enum status sweep_report_make(const char *folder, struct error *err);

#endif
