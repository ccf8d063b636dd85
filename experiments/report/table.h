/*
 * table: the main table of a report, one column per mode, rows in sections.  HTML and Markdown show
 * the same one.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_TABLE_H
#define SPARRING_EXPERIMENTS_REPORT_TABLE_H

#include "experiments/report/comparison.h"

#include <stdbool.h>
#include <stddef.h>

#define TABLE_ROWS_MAX 80

struct table_row {
    char label[96];
    bool is_section; /* its cells are empty */
};

struct table {
    struct table_row rows[TABLE_ROWS_MAX];
    size_t row_count;
    size_t columns;         /* modes */
    struct text_list cells; /* row by row */
};

/* Rows without a known value in any mode are left out. */
enum status table_make(const struct comparison *c, struct table *ret, struct error *err);
void table_release(struct table *t);

/* "faster", "equivalent", "undecided", "too_few", "not_comparable", "no_target", "not_asked": for
 * report.json; and as words. */
const char *ratio_state_name(enum ratio_state state);
const char *ratio_words(const struct ratio *ratio);

#endif
