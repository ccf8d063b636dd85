/*
 * sweep_json: the JSON file of a sweep: the members of nccl-tests' file (version, start_time, args,
 * env, config, devices, results) and ours (rows, one per placement; see bench_report.h).
 */
#include "common/base/host.h"
#include "experiments/bench/sweep.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

static const char *const placement_names[] = {"out_of_place", "in_place"};

/* ---- ours ---- */

static void add_iterations(struct bench_report *r, const struct iteration_figures *f)
{
    bench_row_double(r, "iteration_us_min", f->min * 1e6);
    bench_row_double(r, "iteration_us_p50", f->median * 1e6);
    bench_row_double(r, "iteration_us_p99", f->p99 * 1e6);
    bench_row_double(r, "iteration_us_max", f->max * 1e6);
    bench_row_double(r, "iteration_us_mean", f->mean * 1e6);
    bench_row_double(r, "iteration_us_stdev", f->stdev * 1e6);
}

static void add_row(struct sweep_table *t, const struct sweep_result *result, enum placement p)
{
    const struct placement_result *one = &result->placements[p];
    const struct sweep *s = t->sweep;
    struct sweep_bandwidth b = sweep_bandwidth(t, result, p);
    struct bench_report *r = &t->report;
    bool backend = s->series[result->series].kind == SERIES_BACKEND;

    bench_row_begin(r);
    bench_row_text(r, "backend", s->series[result->series].name);
    bench_row_text(r, "collective", backend ? sweep_call_name(s->call) : "none");
    bench_row_text(r, "placement", placement_names[p]);
    bench_row_text(r, "op",
                   collective_call_reduces(s->call) ? sweep_op_name((enum reduce_op)result->op)
                                                    : "none");
    bench_row_int(r, "root", result->root);
    bench_row_text(r, "order", t->options->order);
    bench_row_int(r, "nranks", s->nproc);
    bench_row_int(r, "hosts", s->hosts);
    bench_row_int(r, "pinned", t->options->pin);
    bench_row_int(r, "registered", t->options->registered);
    bench_row_int(r, "fresh", t->options->fresh);
    bench_row_int(r, "bytes", (int64_t)result->bytes);
    bench_row_int(r, "count", (int64_t)result->count);
    bench_row_text(r, "type", dtype_name((enum dtype)result->dtype));
    bench_row_text(r, "network", s->hosts > 1 ? "namespaces" : "loopback");
    bench_row_int(r, "cycle", (int64_t)result->cycle);
    bench_row_int(r, "iterations", (int64_t)one->iterations);
    bench_row_int(r, "rounds", t->options->rounds);
    bench_row_summary(r, "time_us", bench_scale(one->seconds, 1e6));
    bench_row_summary(r, "algbw", b.algbw);
    bench_row_summary(r, "busbw", b.busbw);
    if (s->link_gb_s > 0) {
        bench_row_double(r, "link_gb_per_s", s->link_gb_s);
        bench_row_double(r, "link_share", b.link_share);
    }
    if (one->per_iteration.samples > 0)
        add_iterations(r, &one->per_iteration);
    if (one->checked)
        bench_row_int(r, "wrong", (int64_t)one->wrong);
    bench_row_end(r);
}

/* ---- nccl-tests' ---- */

static void add_placement(struct sweep_table *t, const struct sweep_result *result,
                          enum placement p)
{
    const struct placement_result *one = &result->placements[p];
    struct sweep_bandwidth b = sweep_bandwidth(t, result, p);

    if (!one->measured) {
        strbuf_addf(&t->results, ",\"%s\":null", placement_names[p]);
        return;
    }
    strbuf_addf(&t->results, ",\"%s\":{\"time\":%.9g,\"alg_bw\":%.9g,\"bus_bw\":%.9g,\"nwrong\":",
                placement_names[p], one->seconds.median * 1e6, b.algbw.median, b.busbw.median);
    if (one->checked)
        strbuf_addf(&t->results, "\"%" PRIu64 "\"}", one->wrong);
    else
        strbuf_add(&t->results, "\"N/A\"}");
}

static void add_per_iteration(struct sweep_table *t, const struct sweep_result *result,
                              enum placement p, const double *times)
{
    const struct iteration_figures *f = &result->placements[p].per_iteration;

    if (f->samples == 0)
        return;
    strbuf_addf(&t->results,
                ",\"%s_per_iter\":{\"min_us\":%.9g,\"max_us\":%.9g,\"avg_us\":%.9g,"
                "\"p50_us\":%.9g,\"p99_us\":%.9g,\"stdev_us\":%.9g,\"cv_pct\":%.9g,\"times_us\":[",
                placement_names[p], f->min * 1e6, f->max * 1e6, f->mean * 1e6, f->median * 1e6,
                f->p99 * 1e6, f->stdev * 1e6, f->mean > 0 ? f->stdev / f->mean * 100 : 0);
    for (uint64_t i = 0; i < f->samples; i++)
        strbuf_addf(&t->results, "%s%.6g", i > 0 ? "," : "", times[i] * 1e6);
    strbuf_add(&t->results, "]}");
}

void sweep_json_add(struct sweep_table *t, const struct sweep_result *result, const double *times)
{
    for (unsigned p = 0; p < PLACEMENTS; p++)
        if (result->placements[p].measured)
            add_row(t, result, (enum placement)p);
    if (t->options->json[0] == '\0')
        return;
    strbuf_addf(&t->results, "%s\n{\"size\":%" PRIu64 ",\"count\":%" PRIu64 ",\"type\":\"%s\"",
                t->results.length > 0 ? "," : "", result->bytes, result->count,
                sweep_dtype_name((enum dtype)result->dtype));
    strbuf_addf(&t->results, ",\"redop\":\"%s\",\"root\":\"%" PRId64 "\",\"backend\":\"%s\"",
                collective_call_reduces(t->sweep->call) ? sweep_op_name((enum reduce_op)result->op)
                                                        : "none",
                result->root, t->sweep->series[result->series].name);
    for (unsigned p = 0; p < PLACEMENTS; p++)
        add_placement(t, result, (enum placement)p);
    add_per_iteration(t, result, OUT_OF_PLACE, times);
    add_per_iteration(t, result, IN_PLACE,
                      times + result->placements[OUT_OF_PLACE].per_iteration.samples);
    strbuf_add(&t->results, "}");
}

/* The environment variables that configure backends. */
static void add_environment(struct strbuf *out)
{
    static const char *const prefixes[] = {"NCCL_", "OMPI_",     "I_MPI_", "MPIR_CVAR_",
                                           "GLOO_", "SPARRING_", "DNNL_",  "OMP_"};
    bool first = true;

    strbuf_add(out, ",\n\"env\":{");
    for (char *const *v = environ; *v; v++)
        for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
            struct strbuf name = STRBUF_INIT;

            if (strncmp(*v, prefixes[i], strlen(prefixes[i])) != 0 || !strchr(*v, '='))
                continue;
            strbuf_add_bytes(&name, *v, strcspn(*v, "="));
            strbuf_add(out, first ? "" : ",");
            strbuf_add_json(out, name.text);
            strbuf_add(out, ":");
            strbuf_add_json(out, strchr(*v, '=') + 1);
            strbuf_release(&name);
            first = false;
        }
    strbuf_add(out, "}");
}

static void add_config(const struct sweep_table *t, struct strbuf *out)
{
    const struct sweep_options *o = t->options;

    strbuf_addf(out,
                ",\n\"nccl_version\":null,\"config\":{\"nthreads\":1,\"ngpus\":0,\"nranks\":%u,"
                "\"minimum_bytes\":%" PRIu64 ",\"maximum_bytes\":%" PRIu64,
                t->sweep->nproc, o->min_bytes, o->max_bytes);
    if (o->step_bytes > 0)
        strbuf_addf(out, ",\"step_bytes\":%" PRIu64, o->step_bytes);
    else
        strbuf_addf(out, ",\"step_factor\":%jd", (intmax_t)o->factor);
    strbuf_addf(out,
                ",\"warmup_iters\":%jd,\"iterations\":\"%s\",\"aggregated_iterations\":%jd,"
                "\"validation\":%jd,\"graph\":0,\"rounds\":%jd,\"pinned\":%s}",
                (intmax_t)o->warmup, o->iterations, (intmax_t)o->aggregate, (intmax_t)o->check,
                (intmax_t)o->rounds, o->pin ? "true" : "false");
}

static void add_devices(const struct sweep_table *t, struct strbuf *out)
{
    struct host_info host;

    host_info_read(&host);
    strbuf_add(out, ",\n\"devices\":[");
    for (unsigned r = 0; r < t->sweep->nproc; r++) {
        strbuf_addf(out, "%s{\"rank\":%u,\"host\":%u,\"device\":", r > 0 ? "," : "", r,
                    r * t->sweep->hosts / t->sweep->nproc);
        strbuf_add_json(out, host.cpu);
        strbuf_add(out, "}");
    }
    strbuf_add(out, "]");
}

enum status sweep_json_write(struct sweep_table *t, char *const *argv, struct error *err)
{
    struct strbuf *out = &t->report.members;

    strbuf_addf(out, ",\n\"start_time\":\"%s\",\"args\":[", t->start_time);
    for (size_t i = 0; argv[i]; i++) {
        strbuf_add(out, i > 0 ? "," : "");
        strbuf_add_json(out, argv[i]);
    }
    strbuf_add(out, "]");
    add_environment(out);
    add_config(t, out);
    add_devices(t, out);
    strbuf_add(out, ",\n\"results\":[");
    strbuf_add_bytes(out, t->results.text, t->results.length);
    strbuf_add(out, "]");
    if (!strbuf_ok(&t->results))
        return error_set(err, STATUS_NO_MEMORY, "no memory for the rows of '%s'", t->options->json);
    return bench_report_write(&t->report, t->options->json, err);
}
