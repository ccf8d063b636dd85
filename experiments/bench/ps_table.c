/*
 * ps_table: the table and the rows of bench ps: per series the time, the bandwidth of all workers
 * in both directions, the wrong elements, and CPU time and memory of the servers; then the ratios
 * of exchange over the others, each the median over rounds of the ratio within a round, which is
 * robust to drift of the machine.
 */
#include "common/base/memory.h"
#include "experiments/bench/bench_ps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)

const char *const ps_kind_names[PS_KINDS] = {"exchange",  "grpc-echo", "grpc-sum", "socket",
                                             "torch-rpc", "replica",   "state"};
const char *const ps_transport_names[PS_TRANSPORTS] = {"tcp", "unix", "shm"};

void ps_table_open(struct ps_table *t, const struct ps_plan *plan)
{
    *t = (struct ps_table){.rounds = plan->rounds};
    bench_report_init(&t->report, "ps");
    (void)printf(
        "# parameter server on one host: every worker pushes and pulls all its bytes\n"
        "# GB/s: of all workers, both ways; median of %zu rounds in which the kinds take\n"
        "# turns.  cpu: of all servers, ns per pushed byte; rss: peak of a server, MiB\n#\n"
        "#w  k  c bytes  part net  tls kind        time us   GB/s    min wrong  cpu  rss\n",
        plan->rounds);
}

/* "64M" where that is exact. */
static const char *size_text(uint64_t bytes, char *text, size_t size)
{
    if (bytes >= 1 << 20 && bytes % (1 << 20) == 0)
        (void)snprintf(text, size, "%" PRIu64 "M", bytes >> 20);
    else if (bytes >= 1 << 10 && bytes % (1 << 10) == 0)
        (void)snprintf(text, size, "%" PRIu64 "K", bytes >> 10);
    else
        (void)snprintf(text, size, "%" PRIu64, bytes);
    return text;
}

/* ---- figures ---- */

struct figures {
    struct bench_summary seconds, gb_per_s;
    double cpu_ns_per_byte;
};

static double median_of(double *samples, size_t count)
{
    return bench_summarise(samples, count).median;
}

/* Summarises a sorted copy: s->seconds keeps the order of rounds for the ratios. */
static enum status compute_figures(const struct ps_table *t, const struct ps_case *c,
                                   const struct ps_series *s, struct figures *ret,
                                   struct error *err)
{
    double turns = (double)(t->rounds * c->iterations);
    double *copy = NULL;
    enum status status = mem_calloc(t->rounds, sizeof(*copy), "times", &copy, err);

    if (status != STATUS_OK)
        return status;
    memcpy(copy, s->seconds, t->rounds * sizeof(*copy));
    ret->seconds = bench_summarise(copy, t->rounds);
    ret->gb_per_s = bench_rate(2e-9 * (double)c->bytes * (double)c->workers, ret->seconds);
    ret->cpu_ns_per_byte =
        s->server_cpu_seconds * 1e9 / (turns * (double)c->bytes * (double)c->workers);
    free(copy);
    return STATUS_OK;
}

static enum status median_ratio(const struct ps_table *t, const struct ps_series *ours,
                                const struct ps_series *other, double *ret, struct error *err)
{
    double *ratios = NULL;
    enum status status = mem_calloc(t->rounds, sizeof(*ratios), "ratios", &ratios, err);

    if (status != STATUS_OK)
        return status;
    for (size_t i = 0; i < t->rounds; i++)
        ratios[i] = other->seconds[i] / ours->seconds[i];
    *ret = median_of(ratios, t->rounds);
    free(ratios);
    return STATUS_OK;
}

/* Bound of a server's memory: the shard twice (accumulators; one of them holds the values too when
 * the server only sums), and 64 MiB for every four connections.  Over shared memory also the mapped
 * pages of the workers: their gradients, and the initial values of one. */
static double rss_bound(const struct ps_case *c, enum ps_transport transport)
{
    unsigned fours = (c->workers * c->connections + 3) / 4;
    unsigned slabs = transport == PS_SHM ? 3 + c->workers : 2;

    return slabs * (double)c->bytes / c->servers + 64 * MIB * fours;
}

/* ---- rows ---- */

/* In the table's ten columns: "exchange", or "ex+onebit". */
static const char *kind_text(const struct ps_series *s, const char *ours, char *text, size_t size)
{
    if (s->codec == CODEC_NONE)
        return ps_kind_names[s->kind];
    (void)snprintf(text, size, "%s+%s", ours, codec_name(s->codec));
    return text;
}

/* Decimals of a figure that has four columns. */
static int decimals_for(double value)
{
    if (value < 9.995)
        return 2;
    return value < 99.95 ? 1 : 0;
}

static void print_row(const struct ps_case *c, const struct ps_series *s, const struct figures *f)
{
    char bytes[24], part[24], kind[24];

    (void)printf("%2u %2u %2u %5s %5s %-4s %-3s %-10s", c->workers, c->servers, c->connections,
                 size_text(c->bytes, bytes, sizeof(bytes)),
                 size_text(c->partition_bytes, part, sizeof(part)),
                 ps_transport_names[s->transport], c->tls ? "yes" : "no",
                 kind_text(s, "ex", kind, sizeof(kind)));
    if (s->note[0] != '\0')
        (void)printf(" not measured: %.110s\n", s->note);
    else
        (void)printf(" %8.0f %6.2f %6.2f %5" PRIu64 " %4.*f %4.0f\n", f->seconds.median * 1e6,
                     f->gb_per_s.median, f->gb_per_s.min, s->wrong,
                     decimals_for(f->cpu_ns_per_byte), f->cpu_ns_per_byte,
                     (double)s->server_rss_bytes / MIB);
}

static void report_row(struct ps_table *t, const struct ps_case *c, const struct ps_series *s,
                       const struct figures *f)
{
    struct bench_report *r = &t->report;

    bench_row_begin(r);
    bench_row_text(r, "kind", ps_kind_names[s->kind]);
    bench_row_text(r, "compression", codec_name(s->codec));
    bench_row_text(r, "transport", ps_transport_names[s->transport]);
    bench_row_text(r, "network", "loopback");
    bench_row_int(r, "tls", c->tls);
    bench_row_int(r, "workers", c->workers);
    bench_row_int(r, "servers", c->servers);
    bench_row_int(r, "connections", (int64_t)c->workers * c->servers * c->connections);
    bench_row_int(r, "connections_per_pair", c->connections);
    bench_row_int(r, "bytes", (int64_t)c->bytes);
    bench_row_int(r, "partition_bytes", (int64_t)c->partition_bytes);
    if (s->note[0] != '\0') {
        bench_row_text(r, "not_measured", s->note);
        bench_row_end(r);
        return;
    }
    bench_row_int(r, "rounds", (int64_t)t->rounds);
    bench_row_int(r, "iterations", (int64_t)c->iterations);
    bench_row_int(r, "wrong", (int64_t)s->wrong);
    bench_row_summary(r, "seconds", f->seconds);
    bench_row_summary(r, "gb_per_s", f->gb_per_s);
    bench_row_double(r, "server_cpu_ns_per_byte", f->cpu_ns_per_byte);
    bench_row_int(r, "server_peak_rss_bytes", (int64_t)s->server_rss_bytes);
    if (s->kind == PS_EXCHANGE && s->codec == CODEC_NONE)
        bench_row_double(r, "server_rss_bound_bytes", rss_bound(c, s->transport));
    bench_row_end(r);
}

/* ---- ratios ---- */

static void report_ratio(struct ps_table *t, const struct ps_case *c, const struct ps_series *ours,
                         const struct ps_series *other, double value)
{
    struct bench_report *r = &t->report;

    bench_row_begin(r);
    bench_row_text(r, "kind", "ratio");
    bench_row_text(r, "compression", codec_name(ours->codec));
    bench_row_text(r, "transport", ps_transport_names[ours->transport]);
    bench_row_text(r, "over_kind", ps_kind_names[other->kind]);
    bench_row_text(r, "over_transport", ps_transport_names[other->transport]);
    bench_row_int(r, "tls", c->tls);
    bench_row_int(r, "workers", c->workers);
    bench_row_int(r, "servers", c->servers);
    bench_row_int(r, "connections_per_pair", c->connections);
    bench_row_int(r, "bytes", (int64_t)c->bytes);
    bench_row_int(r, "partition_bytes", (int64_t)c->partition_bytes);
    bench_row_double(r, "speed_ratio", value);
    bench_row_end(r);
}

static void print_rss(const struct ps_case *c, const struct ps_series *ours)
{
    double bound = rss_bound(c, ours->transport);

    if (ours->codec == CODEC_NONE && (double)ours->server_rss_bytes > bound)
        (void)printf("# exchange over %s: a server took %.0f MiB, %.0f are allowed\n",
                     ps_transport_names[ours->transport], (double)ours->server_rss_bytes / MIB,
                     bound / MIB);
}

/* `ours` over every other uncompressed series on the same transport, and over exchange on TCP. */
static enum status add_ratios(struct ps_table *t, const struct ps_case *c,
                              const struct ps_series *series, size_t length,
                              const struct ps_series *ours, struct error *err)
{
    for (size_t i = 0; i < length; i++) {
        const struct ps_series *other = &series[i];
        bool same = other->transport == ours->transport;
        double value = 0;
        char kind[24];
        enum status status;

        if (other == ours || other->note[0] != '\0' || other->codec != CODEC_NONE ||
            (!same && !(other->kind == PS_EXCHANGE && other->transport == PS_TCP)))
            continue;
        status = median_ratio(t, ours, other, &value, err);
        if (status != STATUS_OK)
            return status;
        (void)printf("# %s over %s runs at %.2f times the speed of %s%s%s\n",
                     kind_text(ours, "exchange", kind, sizeof(kind)),
                     ps_transport_names[ours->transport], value, ps_kind_names[other->kind],
                     same ? "" : " over ", same ? "" : ps_transport_names[other->transport]);
        report_ratio(t, c, ours, other, value);
    }
    return STATUS_OK;
}

enum status ps_table_add(struct ps_table *t, const struct ps_case *c, struct ps_series *series,
                         size_t length, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; status == STATUS_OK && i < length; i++) {
        struct figures f = {.cpu_ns_per_byte = 0};

        if (series[i].note[0] == '\0')
            status = compute_figures(t, c, &series[i], &f, err);
        if (status != STATUS_OK)
            return status;
        print_row(c, &series[i], &f);
        report_row(t, c, &series[i], &f);
        t->wrong += series[i].wrong;
    }
    for (size_t i = 0; status == STATUS_OK && i < length; i++)
        if (series[i].kind == PS_EXCHANGE && series[i].note[0] == '\0') {
            print_rss(c, &series[i]);
            status = add_ratios(t, c, series, length, &series[i], err);
        }
    (void)fflush(stdout);
    return status;
}

void ps_table_release(struct ps_table *t)
{
    bench_report_release(&t->report);
}
