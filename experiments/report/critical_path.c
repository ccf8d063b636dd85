/*
 * critical_path: finds the last rank of every step, and adds the parts of its step.
 */
#include "experiments/report/critical_path.h"

#include "common/base/memory.h"
#include "experiments/report/metric.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_SHARE      0.05 /* of a part that is described */
#define DESCRIBED_MAX    4
#define SAME_SHARE       0.05      /* of a step: waits that differ by less are as long */
#define LEAST_OF_PROCESS (2.0 / 3) /* of a part that is said to be one process's */
#define LEAST_QUEUED     3 /* times the queue of any other link, of one that is said to be slow */

void critical_path_release(struct critical_path *p)
{
    free(p->ns);
    free(p->waited);
    free(p->caused);
    free(p->queued);
    free(p->server_numbers);
    *p = (struct critical_path){0};
}

static const char *const part_names[PATH_PARTS] = {
    "input", "forward", "backward", "computation", "sum", "communication", "optimizer", "other"};

/* ---- adding ---- */

/* Of a record that begins with its number. */
static int compare_numbers(const void *key, const void *record)
{
    const uint64_t a = *(const uint64_t *)key, b = *(const uint64_t *)record;

    return (a > b) - (a < b);
}

/* The record of the rank that waits least in the step, and how long each waits; NULL when a rank
 * has no record of it. */
static const struct step_record *find_last(struct critical_path *p, const struct run *run,
                                           uint64_t step)
{
    const struct step_record *last = NULL;

    for (size_t i = 0; i < run->rank_count; i++) {
        const struct records *rank = &run->ranks[i];
        const struct step_record *record =
            rank->length > 0
                ? bsearch(&step, rank->steps, rank->length, sizeof(*rank->steps), compare_numbers)
                : NULL;

        if (!record)
            return NULL;
        p->waited[i] = (double)record->exposed_comm_ns;
        if (!last || record->exposed_comm_ns < last->exposed_comm_ns)
            last = record;
    }
    return last;
}

/* A server numbers its rounds from 1, a rank its steps from 0 or from where it was resumed. */
static const struct round_record *find_round(const struct records *server, uint64_t since_first)
{
    uint64_t number;

    if (server->round_count == 0)
        return NULL;
    number = server->rounds[0].round + since_first;
    return bsearch(&number, server->rounds, server->round_count, sizeof(*server->rounds),
                   compare_numbers);
}

static bool have_one_clock(const struct run *run)
{
    for (size_t k = 0; k < run->server_count; k++)
        if (strcmp(run->servers[k].host, run->servers[0].host) != 0)
            return false;
    return true;
}

struct last_server {
    size_t index;
    double sum_ns;      /* after a partition's last contribution, as a mean of the partitions */
    double complete_ns; /* when its round was complete */
    double later_ns;    /* than the round of any other server; NaN: not known */
};

/* The server whose round was complete last; of servers on several hosts, whose clocks differ, the
 * one with the longest sum. */
static struct last_server find_last_server(const struct run *run, uint64_t since_first)
{
    const bool have_clock = have_one_clock(run);
    struct last_server last = {.later_ns = (double)NAN};

    for (size_t k = 0; k < run->server_count; k++) {
        const struct records *server = &run->servers[k];
        const struct round_record *round = find_round(server, since_first);
        struct last_server other = {.index = k, .later_ns = (double)NAN};
        double later_ns;

        if (!round || server->partitions == 0)
            continue;
        other.sum_ns =
            (double)round->round_ns - (double)round->wait_ns / (double)server->partitions;
        other.sum_ns = fmin(fmax(other.sum_ns, 0), (double)round->sum_ns);
        other.complete_ns = round->begin_wall * 1e9 + (double)round->round_ns;
        later_ns =
            have_clock && last.complete_ns > 0 ? other.complete_ns - last.complete_ns : (double)NAN;
        other.later_ns = later_ns;
        if (have_clock ? other.complete_ns > last.complete_ns : other.sum_ns > last.sum_ns)
            last = other;
        else
            last.later_ns = fmin(last.later_ns, -later_ns);
    }
    return last;
}

static void add_part(struct critical_path *p, enum path_part part, size_t process, double ns)
{
    p->ns[(size_t)part * p->processes + process] += ns;
    p->total_ns += ns;
}

/* To a server whose round was complete later than the others' by more than `limit`, else in equal
 * parts to all. */
static void add_communication(struct critical_path *p, const struct last_server *server,
                              double limit, double ns)
{
    const size_t count = p->servers > 0 && !(server->later_ns > limit) ? p->servers : 1;

    for (size_t i = 0; i < count; i++)
        add_part(p, PATH_COMMUNICATION, count > 1 ? i : server->index, ns / (double)count);
}

/* In equal parts to the ranks that waited at most `limit`. */
static void add_ranks_part(struct critical_path *p, enum path_part part, double limit, double ns)
{
    double count = 0;

    for (size_t i = 0; i < p->ranks; i++)
        count += p->waited[i] <= limit;
    for (size_t i = 0; i < p->ranks; i++)
        if (p->waited[i] <= limit)
            add_part(p, part, i, ns / count);
}

/* The ranks that waited at most `limit` have caused equal parts of what the others waited longer.
 */
static void add_waiting(struct critical_path *p, double limit, double least)
{
    double count = 0, longer = 0;

    for (size_t i = 0; i < p->ranks; i++) {
        count += p->waited[i] <= limit;
        longer += p->waited[i] - least;
    }
    for (size_t i = 0; i < p->ranks; i++)
        if (p->waited[i] <= limit)
            p->caused[i] += longer / count;
    p->messages_ns += least;
}

static void add_step(struct critical_path *p, const struct run *run, const struct step_record *s,
                     bool is_split)
{
    const double input = (double)s->input_ns, compute = (double)s->compute_ns;
    const double waited = (double)s->exposed_comm_ns, optimizer = (double)s->optimizer_ns;
    const double forward = is_split ? (double)s->forward_ns : 0;
    const double same = SAME_SHARE * (double)s->step_ns, limit = waited + same;
    const struct last_server server = find_last_server(run, s->step - run->ranks[0].steps[0].step);
    const double sum = fmin(waited, server.sum_ns);

    add_waiting(p, limit, waited);
    add_ranks_part(p, PATH_INPUT, limit, input);
    add_ranks_part(p, PATH_FORWARD, limit, forward);
    add_ranks_part(p, PATH_BACKWARD, limit, is_split ? compute - forward : 0);
    add_ranks_part(p, PATH_COMPUTE, limit, is_split ? 0 : compute);
    add_part(p, PATH_SUM, server.index, sum);
    add_communication(p, &server, same, waited - sum);
    add_ranks_part(p, PATH_OPTIMIZER, limit, optimizer);
    add_ranks_part(p, PATH_OTHER, limit, (double)s->step_ns - input - compute - waited - optimizer);
    p->steps++;
}

enum status critical_path_add(struct critical_path *p, const struct run *run, struct error *err)
{
    const struct records *first = run->ranks;
    /* on another device forward lasts until it is issued */
    const bool is_cpu = strncmp(run->configuration.device, "cpu", 3) == 0;
    const bool is_ring = strcmp(run->configuration.backend, "ring") == 0; /* one over all ranks */
    enum status status = STATUS_OK;

    if (!design_is_lockstep(run_option, run) || run->rank_count == 0)
        return STATUS_OK;
    if (!p->ns) {
        p->ranks = run->rank_count;
        p->servers = run->server_count;
        p->processes = p->ranks > p->servers ? p->ranks : p->servers;
        status =
            mem_calloc(PATH_PARTS * p->processes, sizeof(double), "a critical path", &p->ns, err);
        if (status == STATUS_OK)
            status = mem_calloc(p->ranks, sizeof(double), "a critical path", &p->waited, err);
        if (status == STATUS_OK)
            status = mem_calloc(p->ranks, sizeof(double), "a critical path", &p->caused, err);
        if (status == STATUS_OK)
            status = mem_calloc(p->ranks, sizeof(double), "a critical path", &p->queued, err);
        if (status == STATUS_OK)
            status = mem_calloc(p->servers, sizeof(*p->server_numbers), "a critical path",
                                &p->server_numbers, err);
        for (size_t k = 0; k < p->servers && status == STATUS_OK; k++)
            p->server_numbers[k] = run->servers[k].index;
    }
    if (status != STATUS_OK || run->rank_count != p->ranks || run->server_count != p->servers)
        return status;
    p->runs++;
    for (size_t i = 0; i < p->ranks; i++)
        p->queued[i] += is_ring
                            ? run->ranks[i].end.tx_queued_bytes / run->ranks[i].end.tx_wire_bytes
                            : (double)NAN;
    for (size_t i = metric_steady(first->length).first; i < metric_steady(first->length).end; i++) {
        const struct step_record *step = find_last(p, run, first->steps[i].step);

        if (step)
            add_step(p, run, step, is_cpu && step->forward_ns > 0);
    }
    return STATUS_OK;
}

/* ---- reading ---- */

static double part_ns(const struct critical_path *p, enum path_part part)
{
    double sum = 0;

    for (size_t i = 0; i < p->processes; i++)
        sum += p->ns[(size_t)part * p->processes + i];
    return sum;
}

double critical_path_share(const struct critical_path *p, enum path_part part)
{
    return p->steps > 0 && p->total_ns > 0 ? part_ns(p, part) / p->total_ns : (double)NAN;
}

void critical_path_process(const struct critical_path *p, enum path_part part, char *text,
                           size_t size)
{
    const bool is_server = part == PATH_SUM || part == PATH_COMMUNICATION;
    const size_t count = is_server ? p->servers : p->ranks;

    text[0] = '\0';
    for (size_t i = 0; i < count && count > 1; i++)
        if (p->ns[(size_t)part * p->processes + i] > LEAST_OF_PROCESS * part_ns(p, part))
            (void)snprintf(text, size, "%s %zu", is_server ? "server" : "rank",
                           is_server ? p->server_numbers[i] : i);
}

double critical_path_messages_ms(const struct critical_path *p)
{
    return p->steps > 0 ? p->messages_ns / (double)p->steps * 1e-6 : (double)NAN;
}

double critical_path_caused_ms(const struct critical_path *p, size_t rank)
{
    return p->steps > 0 ? p->caused[rank] / (double)p->steps / (double)p->ranks * 1e-6
                        : (double)NAN;
}

size_t critical_path_latest(const struct critical_path *p)
{
    size_t latest = SIZE_MAX;

    for (size_t i = 0; i < p->ranks && p->steps > 0; i++)
        if (p->caused[i] > (latest == SIZE_MAX ? 0 : p->caused[latest]))
            latest = i;
    return latest;
}

/* Do these `count` ranks of the ring, from `first` on, queue LEAST_QUEUED times as much as any
 * other? */
static bool stand_out(const struct critical_path *p, size_t first, size_t count)
{
    double least = (double)INFINITY, most = 0;

    for (size_t i = 0; i < p->ranks; i++) {
        const double queued = p->queued[(first + i) % p->ranks];

        if (i < count)
            least = fmin(least, queued);
        else
            most = fmax(most, queued);
        if (isnan(queued))
            return false;
    }
    return least > LEAST_SHARE * (double)p->runs && least >= LEAST_QUEUED * most;
}

void critical_path_link(const struct critical_path *p, char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < p->ranks && p->ranks > 2 && p->queued; i++) {
        const size_t next = (i + 1) % p->ranks;

        if (stand_out(p, i, 2)) /* both its own sends and those to it */
            (void)snprintf(text, size, "the link of rank %zu", next);
        else if (stand_out(p, i, 1))
            (void)snprintf(text, size, "the link from rank %zu to rank %zu", i, next);
    }
}

/* The largest part that is not described yet. */
static enum path_part largest_part(const struct critical_path *p, const bool described[PATH_PARTS])
{
    enum path_part largest = PATH_PARTS;

    for (int i = 0; i < PATH_PARTS; i++)
        if (!described[i] && (largest == PATH_PARTS || critical_path_share(p, (enum path_part)i) >
                                                           critical_path_share(p, largest)))
            largest = (enum path_part)i;
    return largest;
}

void critical_path_describe(const struct critical_path *p, struct strbuf *out)
{
    bool described[PATH_PARTS] = {false};

    for (int i = 0; i < DESCRIBED_MAX; i++) {
        const enum path_part part = largest_part(p, described);
        const double share = critical_path_share(p, part);
        char process[32], link[64] = "";

        if (!(share >= LEAST_SHARE))
            break;
        described[part] = true;
        critical_path_process(p, part, process, sizeof(process));
        if (part == PATH_COMMUNICATION)
            critical_path_link(p, link, sizeof(link));
        strbuf_addf(out, "%s%.0f %% %s%s%s%s%s", i > 0 ? ", " : "", 100 * share, part_names[part],
                    process[0] == '\0'           ? ""
                    : part == PATH_COMMUNICATION ? " with "
                                                 : " of ",
                    process, link[0] != '\0' ? " over " : "", link);
    }
}

void critical_path_write_json(const struct critical_path *p, struct strbuf *out)
{
    char link[64];

    critical_path_link(p, link, sizeof(link));
    strbuf_addf(out, "{\"steps\":%zu,\"link\":\"%s\"", p->steps, link);
    for (int i = 0; i < PATH_PARTS && p->steps > 0 && p->total_ns > 0; i++) {
        const enum path_part part = (enum path_part)i;
        char process[32];

        critical_path_process(p, part, process, sizeof(process));
        strbuf_addf(out, ",\"%s\":{\"share\":%.9g,\"process\":\"%s\"}", part_names[part],
                    critical_path_share(p, part), process);
    }
    for (size_t i = 0; i < p->ranks && p->steps > 0; i++)
        strbuf_addf(out, "%s%.9g", i == 0 ? ",\"waiting_ms\":{\"ranks\":[" : ",",
                    critical_path_caused_ms(p, i));
    if (p->steps > 0)
        strbuf_addf(out, "],\"messages\":%.9g}", critical_path_messages_ms(p));
    strbuf_add(out, "}");
}
