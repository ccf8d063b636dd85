/*
 * write: writes a comparison as an HTML page, as Markdown for pull requests, as JSON for programs,
 * and as CSV for spreadsheets.  Each appends to `out`; the caller checks strbuf_ok.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_WRITE_H
#define SPARRING_EXPERIMENTS_REPORT_WRITE_H

#include "common/base/strbuf.h"
#include "experiments/report/comparison.h"
#include "experiments/report/figure.h"
#include "experiments/report/table.h"

/* 1: samples_per_second was that of the median step; 2: also where ranks do not wait for each other
 * the figures were over all but a rank's first steps and the last. */
#define REPORT_SCHEMA 3

struct report_content {
    const struct comparison *comparison;
    const struct table *table;
    const struct figure_set *figures;
    const char *command; /* the command line that makes this report again */
};

/* One self-contained file: no script, nothing fetched; well-formed as XML too. */
void write_html(const struct report_content *r, struct strbuf *out);
/* The beginning of a page, to its heading; title "": a general one. */
void write_html_top(const char *title, struct strbuf *out);
/* A figure with its legend, caption and table. */
void write_html_figure(const char *command, const struct figure *f, struct strbuf *out);
void write_markdown(const struct report_content *r, struct strbuf *out);
void write_json(const struct report_content *r, struct strbuf *out);
void write_csv(const struct report_content *r, struct strbuf *out); /* one line per run */

/* RFC 4180: quotes around, quotes inside doubled.  A cell that a spreadsheet would take for a
 * formula gets an apostrophe. */
void write_csv_text(struct strbuf *out, const char *text);

/* The style sheet of the page, light and dark. */
extern const char write_html_style[];

#endif
