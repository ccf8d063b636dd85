/*
 * bench_report: rows are appended as JSON text, so that a benchmark needs no table for the file.  A
 * failed allocation is reported when the file is written (strbuf remembers it).
 */
#include "experiments/bench/bench_report.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/host.h"
#include "common/base/version.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

struct bench_summary bench_summarise(double *samples, size_t count)
{
    struct bench_summary s = {.samples = count};

    if (count == 0)
        return s;
    qsort(samples, count, sizeof(*samples), compare_doubles);
    s.median = (samples[(count - 1) / 2] + samples[count / 2]) / 2;
    s.min = samples[0];
    s.max = samples[count - 1];
    return s;
}

struct bench_summary bench_scale(struct bench_summary s, double factor)
{
    s.median *= factor;
    s.min *= factor;
    s.max *= factor;
    return s;
}

struct bench_summary bench_rate(double amount, struct bench_summary seconds)
{
    struct bench_summary rate = {.samples = seconds.samples,
                                 .median = amount / seconds.median,
                                 .min = amount / seconds.max,
                                 .max = amount / seconds.min};

    return rate;
}

void bench_report_init(struct bench_report *r, const char *bench)
{
    *r = (struct bench_report){.bench = bench, .rows = STRBUF_INIT, .members = STRBUF_INIT};
}

void bench_row_begin(struct bench_report *r)
{
    strbuf_add(&r->rows, r->length == 0 ? "\n{" : ",\n{");
    r->length++;
    r->fields = 0;
}

static void add_name(struct bench_report *r, const char *name, const char *suffix)
{
    strbuf_addf(&r->rows, "%s\"%s%s\":", r->fields == 0 ? "" : ",", name, suffix);
    r->fields++;
}

void bench_row_text(struct bench_report *r, const char *name, const char *value)
{
    add_name(r, name, "");
    strbuf_add_json(&r->rows, value);
}

void bench_row_int(struct bench_report *r, const char *name, int64_t value)
{
    add_name(r, name, "");
    strbuf_addf(&r->rows, "%" PRId64, value);
}

static void add_double(struct bench_report *r, const char *name, const char *suffix, double value)
{
    add_name(r, name, suffix);
    if (isfinite(value))
        strbuf_addf(&r->rows, "%.9g", value);
    else
        strbuf_add(&r->rows, "null");
}

void bench_row_double(struct bench_report *r, const char *name, double value)
{
    add_double(r, name, "", value);
}

void bench_row_summary(struct bench_report *r, const char *name, struct bench_summary s)
{
    add_double(r, name, "", s.median);
    add_double(r, name, "_min", s.min);
    add_double(r, name, "_max", s.max);
}

void bench_row_end(struct bench_report *r)
{
    strbuf_add(&r->rows, "}");
}

enum status bench_report_write(const struct bench_report *r, const char *path, struct error *err)
{
    struct strbuf out = STRBUF_INIT;
    struct host_info host;
    char now[32];
    enum status status;

    host_info_read(&host);
    clock_wall_text(now, sizeof(now));
    strbuf_addf(&out, "{\"schema\":1,\"bench\":\"%s\",\"version\":\"%s\",\"git\":", r->bench,
                SPARRING_VERSION);
    strbuf_add_json(&out, version_git());
    strbuf_addf(&out, ",\"time\":\"%s\",\n\"host\":", now);
    host_info_json(&host, &out);
    strbuf_add_bytes(&out, r->members.text, r->members.length);
    strbuf_add(&out, ",\n\"rows\":[");
    strbuf_add_bytes(&out, r->rows.text, r->rows.length);
    strbuf_add(&out, "\n]}\n");
    if (strbuf_ok(&r->rows) && strbuf_ok(&r->members) && strbuf_ok(&out))
        status = file_write_atomic(path, out.text, out.length, err);
    else
        status = error_set(err, STATUS_NO_MEMORY, "no memory for the rows of '%s'", path);
    strbuf_release(&out);
    return status;
}

void bench_report_release(struct bench_report *r)
{
    strbuf_release(&r->rows);
    strbuf_release(&r->members);
}
