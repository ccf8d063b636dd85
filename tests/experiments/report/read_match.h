/*
 * read_match: a folder of runs read as `sparring report` does, and what its texts say.
 */
#ifndef SPARRING_TESTS_EXPERIMENTS_REPORT_READ_MATCH_H
#define SPARRING_TESTS_EXPERIMENTS_REPORT_READ_MATCH_H

#include "experiments/report/report.h"

/* The report that read_match fills; report_release it. */
extern struct report report;

struct comparison *read_match(const char *path);

/* One of the texts has `text` in it; else all of them are printed. */
void assert_mentions(const struct text_list *list, const char *text);
void assert_said(const char *said, const char *text);

#endif
