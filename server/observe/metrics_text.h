/*
 * metrics_text: a server's statistics in the text format of Prometheus, version 0.0.4
 * (prometheus.io/docs/instrumenting/exposition_formats).  METRICS.md lists the names.  Pure.
 */
#ifndef SPARRING_SERVER_OBSERVE_METRICS_TEXT_H
#define SPARRING_SERVER_OBSERVE_METRICS_TEXT_H

#include "common/base/strbuf.h"
#include "common/wire/wire_stats.h"

#define METRICS_TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* Append the whole page; a job's metrics only while there is one.  Check strbuf_ok. */
void metrics_text(const struct server_stats *stats, struct strbuf *out);

#endif
