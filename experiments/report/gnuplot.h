/*
 * gnuplot: runs the host's gnuplot program on a script and converts its SVG for an HTML page.  Only
 * numbers and our own names reach the script; texts of users are inserted afterwards, escaped, so
 * no text can act as a gnuplot command.
 */
#ifndef SPARRING_EXPERIMENTS_REPORT_GNUPLOT_H
#define SPARRING_EXPERIMENTS_REPORT_GNUPLOT_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "common/base/text_list.h"

/* Colours that the style sheet of the page replaces by those of its light or dark theme. */
#define GNUPLOT_INK  "#333333" /* rgb(51,51,51) */
#define GNUPLOT_GRID "#dddddd" /* rgb(221,221,221) */

#define GNUPLOT_WIDTH 760

struct gnuplot_picture {
    const char *name; /* letters and digits; prefix of the identifiers inside */
    const char *title, *description;
    unsigned height;
    const struct strbuf *script;    /* after `set terminal` and `set output` */
    const struct text_list *texts;  /* the k-th replaces "@k@" in the picture */
    const struct text_list *titles; /* tool tip of the k-th plot element */
};

/* Append an <svg> element to `out`.  STATUS_NOT_FOUND: there is no gnuplot in PATH; any other
 * failure carries gnuplot's own first line. */
enum status gnuplot_draw(const struct gnuplot_picture *picture, struct strbuf *out,
                         struct error *err);

/* The conversion alone: append gnuplot's SVG in `text` as an element for HTML. */
enum status gnuplot_embed(const struct gnuplot_picture *picture, const char *text,
                          struct strbuf *out, struct error *err);

#endif
