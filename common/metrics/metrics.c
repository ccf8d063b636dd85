/*
 * metrics: a record is built in one reused buffer and written with one write(2) to a descriptor
 * opened for append, so lines never mix and a crash loses at most the current record.
 * Limits: none on the length of a record; names are ours and need no escaping, texts are escaped.
 * Locking: none, one writer per struct metrics.
 */
#include "common/metrics/metrics.h"

#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum status metrics_open(struct metrics *m, const char *path, struct error *err)
{
    *m = (struct metrics){.fd = -1, .line = STRBUF_INIT};
    if (!path)
        return STATUS_OK;
    if (strlen(path) >= sizeof(m->path))
        return error_set(err, STATUS_CONFIG, "path of %zu bytes is too long", strlen(path));
    (void)snprintf(m->path, sizeof(m->path), "%s", path);
    m->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0)
        return error_set_errno(err, errno, "cannot open '%s'", path);
    return STATUS_OK;
}

void metrics_begin(struct metrics *m, const char *kind)
{
    if (m->fd < 0)
        return;
    strbuf_reset(&m->line);
    strbuf_addf(&m->line, "{\"kind\":\"%s\"", kind);
}

void metrics_add_text(struct metrics *m, const char *name, const char *value)
{
    if (m->fd < 0)
        return;
    strbuf_addf(&m->line, ",\"%s\":", name);
    strbuf_add_json(&m->line, value);
}

void metrics_add_int(struct metrics *m, const char *name, int64_t value)
{
    if (m->fd >= 0)
        strbuf_addf(&m->line, ",\"%s\":%jd", name, (intmax_t)value);
}

void metrics_add_double(struct metrics *m, const char *name, double value)
{
    if (m->fd < 0)
        return;
    strbuf_addf(&m->line, ",\"%s\":", name);
    if (isfinite(value))
        strbuf_add_double(&m->line, value);
    else
        strbuf_add(&m->line, "null");
}

void metrics_add_counts(struct metrics *m, const char *name, const uint64_t *values, size_t length)
{
    if (m->fd < 0)
        return;
    strbuf_addf(&m->line, ",\"%s\":[", name);
    for (size_t i = 0; i < length; i++)
        strbuf_addf(&m->line, "%s%ju", i ? "," : "", (uintmax_t)values[i]);
    strbuf_add(&m->line, "]");
}

enum status metrics_end(struct metrics *m, struct error *err)
{
    if (m->fd < 0)
        return STATUS_OK;
    strbuf_add(&m->line, "}\n");
    if (!strbuf_ok(&m->line)) {
        strbuf_release(&m->line); /* a later, smaller record may fit again */
        return error_set(err, STATUS_NO_MEMORY, "no memory for a record of '%s'", m->path);
    }
    return file_write_all(m->fd, m->path, m->line.text, m->line.length, err);
}

static void add_count(struct metrics *m, const char *name, uint64_t value)
{
    strbuf_addf(&m->line, ",\"%s\":%ju", name, (uintmax_t)value);
}

enum status metrics_step(struct metrics *m, const struct step_record *record, struct error *err)
{
    if (m->fd < 0)
        return STATUS_OK;
    metrics_begin(m, "step");
    add_count(m, "step", record->step);
    add_count(m, "epoch", record->epoch);
    if (isfinite(record->loss)) /* a float: nine digits are exact */
        strbuf_addf(&m->line, ",\"loss\":%.9g", record->loss);
    else
        strbuf_add(&m->line, ",\"loss\":null");
    add_count(m, "samples", record->samples);
    if (record->begin_wall != 0)
        metrics_add_double(m, "begin_wall", record->begin_wall);
    metrics_add_int(m, "step_ns", record->step_ns);
    metrics_add_int(m, "input_ns", record->input_ns);
    metrics_add_int(m, "compute_ns", record->compute_ns);
    metrics_add_int(m, "exposed_comm_ns", record->exposed_comm_ns);
    metrics_add_int(m, "optimizer_ns", record->optimizer_ns);
    metrics_add_int(m, "forward_ns", record->forward_ns);
    metrics_add_int(m, "comm_ns", record->comm_ns);
    add_count(m, "tx_payload_bytes", record->tx_payload_bytes);
    add_count(m, "rx_payload_bytes", record->rx_payload_bytes);
    return metrics_end(m, err);
}

void metrics_close(struct metrics *m)
{
    if (m->fd >= 0 && m->path[0] != '\0') /* a zeroed struct owns no descriptor */
        (void)close(m->fd);
    m->fd = -1;
    strbuf_release(&m->line);
}
