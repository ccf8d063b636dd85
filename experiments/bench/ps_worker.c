/*
 * ps_worker: a process of bench ps: its arguments, the turns of a worker, and the check of results.
 *
 * A worker's gradient consists of small integers that differ by rank, element and iteration, with a
 * period that divides no piece, so that the check detects a piece that is displaced, summed twice
 * or left from an earlier iteration.  It is written before and checked after every iteration,
 * outside the measured time.  Results overwrite the gradient, so a missing echo would look right:
 * therefore received bytes are counted, too.
 */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "experiments/bench/bench_ps.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PERIOD    251   /* of the values, elements */
#define TOLERANCE 0.002 /* below half of the least difference, 1/64 */

/* ---- words ---- */

static enum status parse_words(struct ps_words *w, int argc, char **argv, struct error *err)
{
    uint64_t *numbers[] = {
        &w->kind,       &w->rank,      &w->workers,     &w->servers, &w->bytes, &w->partition_bytes,
        &w->timeout_ms, &w->transport, &w->connections, &w->codec};
    size_t count = sizeof(numbers) / sizeof(numbers[0]);

    if (argc != 2 + PS_WORD_COUNT)
        return error_set(err, STATUS_INVALID, "%s is for bench ps itself", argv[1]);
    for (size_t i = 0; i < count; i++)
        if (!parse_uint64(argv[2 + i], numbers[i]))
            return error_set(err, STATUS_INVALID, "'%s' is no number", argv[2 + i]);
    w->address = argv[2 + count];
    w->port_file = argv[3 + count];
    w->security.ca_file = argv[4 + count];
    w->security.cert_file = argv[5 + count];
    w->security.key_file = argv[6 + count];
    return STATUS_OK;
}

/* ---- values ---- */

/* The value of an element at position `phase` of the period. */
static unsigned value_of(uint64_t rank, uint64_t iteration, size_t phase)
{
    return (unsigned)((phase * 31 + rank * 17 + iteration * 7) % PERIOD);
}

static void fill_gradient(struct ps_worker *w, uint64_t iteration)
{
    float period[PERIOD];

    for (size_t i = 0; i < PERIOD; i++)
        period[i] = (float)value_of(w->words.rank, iteration, i);
    for (size_t i = 0; i < w->count; i += PERIOD)
        memcpy(w->values + i, period,
               (w->count - i < PERIOD ? w->count - i : PERIOD) * sizeof(float));
}

static float expected_value(const struct ps_worker *w, bool sums, uint64_t iteration, size_t phase)
{
    unsigned sum = 0;

    if (!sums)
        return (float)value_of(w->words.rank, iteration, phase);
    for (uint64_t rank = 0; rank < w->words.workers; rank++)
        sum += value_of(rank, iteration, phase);
    return (float)sum / (float)w->words.workers;
}

/* Largest error of a value below PERIOD.  fp16 and bf16 (11 and 8 bits) round once each way; the
 * other codecs drop elements or signs by design, so any value passes. */
static double tolerance_of(uint64_t codec)
{
    static const double tolerances[CODEC_KINDS] = {
        [CODEC_NONE] = TOLERANCE, [CODEC_FP16] = PERIOD / 1024.0, [CODEC_BF16] = PERIOD / 128.0};

    return codec < CODEC_KINDS && tolerances[codec] > 0 ? tolerances[codec] : HUGE_VAL;
}

static uint64_t count_outside_tolerance(const float *values, const float *right, size_t count,
                                        double tolerance)
{
    uint64_t wrong = 0;

    for (size_t i = 0; i < count; i++)
        wrong += !(fabs((double)(values[i] - right[i])) <= tolerance); /* NaN too */
    return wrong;
}

static uint64_t count_wrong(const struct ps_worker *w, bool sums, uint64_t iteration)
{
    double tolerance = tolerance_of(w->words.codec);
    float period[PERIOD];
    uint64_t missing = w->received < w->words.bytes ? w->words.bytes - w->received : 0;
    uint64_t wrong = (missing + sizeof(float) - 1) / sizeof(float);

    for (size_t i = 0; i < PERIOD; i++)
        period[i] = expected_value(w, sums, iteration, i);
    for (size_t i = 0; i < w->count; i += PERIOD)
        wrong += count_outside_tolerance(w->values + i, period,
                                         w->count - i < PERIOD ? w->count - i : PERIOD, tolerance);
    return wrong;
}

/* ---- turns ---- */

static enum status run_turn(struct ps_worker *w, const struct ps_worker_ops *ops, uint64_t count,
                            uint64_t *iteration, struct error *err)
{
    int64_t spent_ns = 0;
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < count; i++, (*iteration)++) {
        int64_t begin_ns;
        enum status status;

        fill_gradient(w, *iteration);
        w->received = 0;
        begin_ns = clock_now_ns();
        status = ops->iterate(w, err);
        spent_ns += clock_now_ns() - begin_ns;
        if (status != STATUS_OK)
            return status;
        wrong += count_wrong(w, ops->sums, *iteration);
    }
    (void)printf("%.9f %" PRIu64 "\n", (double)spent_ns * 1e-9 / (double)count, wrong);
    (void)fflush(stdout);
    return STATUS_OK;
}

static enum status run_turns(struct ps_worker *w, const struct ps_worker_ops *ops,
                             struct error *err)
{
    uint64_t iteration = 0, count;
    char line[64];
    enum status status = STATUS_OK;

    (void)printf("ready\n");
    (void)fflush(stdout);
    while (status == STATUS_OK && fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (!parse_uint64(line, &count) || count == 0)
            return error_set(err, STATUS_PROTOCOL, "'%s' is no number of iterations", line);
        status = run_turn(w, ops, count, &iteration, err);
    }
    return status;
}

static enum status parse_servers(struct ps_worker *w, struct error *err)
{
    const char *text = w->words.address;

    while (*text) {
        size_t length = strcspn(text, ",");
        char entry[320];
        enum status status;

        if (w->server_count == PS_SERVERS_MAX || length >= sizeof(entry))
            return error_set(err, STATUS_INVALID, "'%s' are too many servers", w->words.address);
        (void)snprintf(entry, sizeof(entry), "%.*s", (int)length, text);
        status = endpoint_parse(entry, "bench ps", &w->servers[w->server_count++], err);
        if (status != STATUS_OK)
            return status;
        text += length + (text[length] == ',');
    }
    return STATUS_OK;
}

static const struct ps_worker_ops *ops_of(uint64_t kind)
{
    static const struct ps_worker_ops *const kinds[PS_KINDS] = {
        [PS_EXCHANGE] = &ps_exchange_worker, [PS_GRPC_ECHO] = &ps_grpc_worker,
        [PS_GRPC_SUM] = &ps_grpc_worker,     [PS_SOCKET] = &ps_socket_worker,
        [PS_REPLICA] = &ps_exchange_worker,  [PS_STATE] = &ps_exchange_worker,
    };

    return kind < PS_KINDS ? kinds[kind] : NULL;
}

static enum status allocate_values(struct ps_worker *w, struct error *err)
{
    enum status status;

    if (w->words.transport != PS_SHM)
        return mem_calloc_aligned(w->count, sizeof(float), "gradients", &w->values, err);
    status = shared_memory_open(2 * w->count * sizeof(float), "bench-ps", &w->memory, err);
    if (status == STATUS_OK)
        w->values = w->memory.base;
    return status;
}

static enum status run_worker(struct ps_worker *w, const struct ps_worker_ops *ops,
                              struct error *err)
{
    enum status status = parse_servers(w, err);

    w->count = (size_t)w->words.bytes / sizeof(float);
    if (status == STATUS_OK)
        status = allocate_values(w, err);
    if (status != STATUS_OK)
        return status;
    status = ops->open(w, err);
    if (status == STATUS_OK)
        status = run_turns(w, ops, err);
    ops->close(w, status == STATUS_OK ? NULL : err);
    return status;
}

int bench_ps_worker(int argc, char **argv)
{
    struct ps_worker w = {.memory = SHARED_MEMORY_NONE};
    struct error err = {0};
    enum status status = parse_words(&w.words, argc, argv, &err);
    const struct ps_worker_ops *ops = ops_of(w.words.kind);

    if (status == STATUS_OK)
        status = ops ? run_worker(&w, ops, &err)
                     : error_set(&err, STATUS_INVALID, "no worker of kind %" PRIu64, w.words.kind);
    if (status != STATUS_OK)
        _exit(log_failure(&err)); /* threads of a broken kind may still use its memory */
    if (!w.memory.base)
        free(w.values);
    shared_memory_release(&w.memory);
    return 0;
}

/* ---- servers ---- */

int bench_ps_server(int argc, char **argv)
{
    struct ps_words words = {.kind = 0};
    struct error err = {0};
    enum status status = parse_words(&words, argc, argv, &err);

    if (status == STATUS_OK && (words.kind == PS_GRPC_ECHO || words.kind == PS_GRPC_SUM))
        status = ps_grpc_serve(&words, &err);
    else if (status == STATUS_OK && words.kind == PS_SOCKET)
        status = ps_socket_serve(&words, &err);
    else if (status == STATUS_OK)
        status = error_set(&err, STATUS_INVALID, "no server of kind %" PRIu64, words.kind);
    return status == STATUS_OK ? 0 : log_failure(&err);
}
