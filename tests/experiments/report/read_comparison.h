/*
 * read_comparison: reads a folder of runs as `sparring report` does, and checks texts.
 */
#ifndef SPARRING_TESTS_EXPERIMENTS_REPORT_READ_COMPARISON_H
#define SPARRING_TESTS_EXPERIMENTS_REPORT_READ_COMPARISON_H

#include "experiments/report/report.h"

/* The report that read_comparison fills; report_release it. */
extern struct report report;

struct comparison *read_comparison(const char *path);

/* Fails, and prints all texts, unless one of them contains `text`. */
void assert_mentions(const struct text_list *list, const char *text);

#endif
