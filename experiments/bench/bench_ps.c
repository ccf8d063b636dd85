/*
 * bench_ps: push and pull of gradients through real servers that sum them, compared with gRPC
 * alone, plain sockets and PyTorch's RPC parameter server in the same pattern and the same run.
 * Every list option multiplies the cases; the kinds and transports of a case take turns (ps_run.c).
 */
#include "experiments/bench/bench_ps.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/stop.h"
#include "common/option/program.h"
#include "common/shard_map/shard_map.h"
#include "experiments/bench/bench.h"
#include "experiments/bench/bench_options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_MAX   16
#define SERIES_MAX ((PS_KINDS + CODECS) * PS_TRANSPORTS)
#define CODECS     CODEC_ROWS /* the codecs before it: these gradients have no rows of zeros */
#define TURN_BYTES (4 << 20)  /* approximate bytes of a turn of small gradients */
#define TURN_MAX   100

struct ps_options {
    char workers[OPTION_TEXT_MAX], servers[OPTION_TEXT_MAX], bytes[OPTION_TEXT_MAX];
    char connections[OPTION_TEXT_MAX];
    char partition_bytes[OPTION_TEXT_MAX], transport[OPTION_TEXT_MAX], kinds[OPTION_TEXT_MAX];
    char compression[OPTION_TEXT_MAX], tls[OPTION_TEXT_MAX];
    char tls_ca[OPTION_TEXT_MAX], tls_cert[OPTION_TEXT_MAX], tls_key[OPTION_TEXT_MAX];
    int64_t rounds, iterations, warmup, timeout_ms;
    char python[OPTION_TEXT_MAX], peer[OPTION_TEXT_MAX];
    char json[OPTION_TEXT_MAX];
};

#define AT(field) offsetof(struct ps_options, field)

static const struct option_spec specs[] = {
    {.help = "What is measured, each a list with commas:"},
    {.name = "workers",
     .kind = OPTION_TEXT,
     .offset = AT(workers),
     .default_text = "1",
     .metavar = "N,...",
     .help = "Worker processes."},
    {.name = "servers",
     .kind = OPTION_TEXT,
     .offset = AT(servers),
     .default_text = "1",
     .metavar = "K,...",
     .help = "Server processes."},
    {.name = "connections",
     .kind = OPTION_TEXT,
     .offset = AT(connections),
     .default_text = "1",
     .metavar = "D,...",
     .help = "Of each worker to each server."},
    {.name = "bytes",
     .kind = OPTION_TEXT,
     .offset = AT(bytes),
     .default_text = "268,64M",
     .metavar = "SIZE,...",
     .help = "Gradient of each worker; all of it goes up and comes back in every iteration.  268 "
             "is linear:10-5-2, one small message each way: how long a round takes beside a round "
             "trip of grpc-echo."},
    {.name = "partition-bytes",
     .kind = OPTION_TEXT,
     .offset = AT(partition_bytes),
     .default_text = "1M",
     .metavar = "SIZE,...",
     .help = "Of a message."},
    {.name = "transport",
     .kind = OPTION_TEXT,
     .offset = AT(transport),
     .default_text = "tcp",
     .metavar = "NAME,...",
     .help = "tcp, unix, or shm: shared memory, joined over a Unix socket."},
    {.name = "kinds",
     .kind = OPTION_TEXT,
     .offset = AT(kinds),
     .default_text = "exchange,grpc-echo,grpc-sum,socket",
     .metavar = "NAME,...",
     .help =
         "exchange: our workers and servers, with the sum.  grpc-echo: gRPC alone, the same "
         "bytes on as many streams, sent back as they came.  grpc-sum: the same, and the server "
         "adds each byte once.  socket: the same over plain "
         "sockets.  torch-rpc: PyTorch's RPC parameter server, with the sum (over tcp and "
         "shm).  replica: exchange, with a second process for each server that keeps its "
         "shard, too.  state: exchange, with the servers' --state-dir in $TMPDIR or /tmp and a "
         "snapshot every 10 rounds."},
    {.name = "compression",
     .kind = OPTION_TEXT,
     .offset = AT(compression),
     .default_text = "none",
     .metavar = "NAME,...",
     .help = "Of exchange, both ways: none, fp16, bf16, topk (one element in a hundred) or onebit. "
             " GB/s are of the bytes as they were before.  Not over shm."},
    {.name = "tls",
     .kind = OPTION_TEXT,
     .offset = AT(tls),
     .default_text = "no",
     .metavar = "no,yes",
     .help = "Without or with mutual TLS, which needs the three files."},
    {.name = "tls-ca",
     .kind = OPTION_TEXT,
     .offset = AT(tls_ca),
     .metavar = "FILE",
     .help = "Certificate authority (PEM)."},
    {.name = "tls-cert",
     .kind = OPTION_TEXT,
     .offset = AT(tls_cert),
     .metavar = "FILE",
     .help = "Certificate of servers and workers, for 127.0.0.1 and, over Unix sockets, "
             "localhost."},
    {.name = "tls-key",
     .kind = OPTION_TEXT,
     .offset = AT(tls_key),
     .metavar = "FILE",
     .help = "Its key."},
    {.help = "How:"},
    {.name = "rounds",
     .kind = OPTION_INT,
     .offset = AT(rounds),
     .default_text = "20",
     .min = 1,
     .max = 1e6,
     .metavar = "R",
     .help = "In each of which every kind and transport has its turn; the median counts."},
    {.name = "iterations",
     .kind = OPTION_INT,
     .offset = AT(iterations),
     .default_text = "0",
     .min = 0,
     .max = 1e6,
     .metavar = "I",
     .help = "Of a turn; 0: one for 4 MiB and more, up to 100 for less."},
    {.name = "warmup",
     .kind = OPTION_INT,
     .offset = AT(warmup),
     .default_text = "3",
     .min = 0,
     .max = 1e6,
     .metavar = "R",
     .help = "Rounds before those."},
    {.name = "timeout-ms",
     .kind = OPTION_INT,
     .offset = AT(timeout_ms),
     .default_text = "60000",
     .min = 1,
     .max = 86400000,
     .metavar = "N",
     .help = "Longest wait for a process or a turn."},
    {.name = "python",
     .kind = OPTION_TEXT,
     .offset = AT(python),
     .default_text = "/usr/bin/python3",
     .metavar = "PROGRAM",
     .help = "Python with PyTorch, for torch-rpc."},
    {.name = "peer",
     .kind = OPTION_TEXT,
     .offset = AT(peer),
     .metavar = "FILE",
     .help = "Its script; by default the one that comes with sparring."},
    BENCH_OPTION_JSON(AT(json)),
    {0},
};

static const struct option_set option_set = {
    .program = "sparring bench ps",
    .summary = "Measure push, sum and pull through real servers, beside gRPC alone, plain sockets "
               "and PyTorch.",
    .usage = "[OPTION]...",
    .tables = {{specs, 0}},
};

/* ---- lists ---- */

struct list {
    uint64_t items[LIST_MAX];
    size_t length;
};

struct lists {
    struct list workers, servers, connections, bytes, partitions, transports, kinds, codecs, tls;
};

/* The kind of a list's items: numbers of bytes, or names. */
struct item_kind {
    const char *option;
    const char *const *names; /* NULL: numbers */
    size_t count;
    uint64_t min, max;
};

static bool read_item(const struct item_kind *kind, const char *word, uint64_t *ret)
{
    if (!kind->names)
        return parse_bytes(word, ret) && *ret >= kind->min && *ret <= kind->max;
    for (size_t i = 0; i < kind->count; i++)
        if (strcmp(word, kind->names[i]) == 0) {
            *ret = i;
            return true;
        }
    return false;
}

static enum status item_error(const struct item_kind *kind, const char *word, struct error *err)
{
    if (kind->names)
        return error_set(err, STATUS_INVALID, "--%s: '%s' is none of %s ... %s", kind->option, word,
                         kind->names[0], kind->names[kind->count - 1]);
    return error_set(err, STATUS_INVALID, "--%s: '%s' is no number from %" PRIu64 " to %" PRIu64,
                     kind->option, word, kind->min, kind->max);
}

static enum status read_list(const struct item_kind *kind, const char *text, struct list *ret,
                             struct error *err)
{
    char words[OPTION_TEXT_MAX], *rest = NULL;

    (void)snprintf(words, sizeof(words), "%s", text);
    for (char *word = strtok_r(words, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (ret->length == LIST_MAX)
            return error_set(err, STATUS_INVALID, "--%s has more than %d items", kind->option,
                             LIST_MAX);
        if (!read_item(kind, word, &ret->items[ret->length++]))
            return item_error(kind, word, err);
    }
    if (ret->length == 0)
        return error_set(err, STATUS_INVALID, "--%s is empty", kind->option);
    return STATUS_OK;
}

static enum status read_lists(const struct ps_options *o, struct lists *l, struct error *err)
{
    static const char *const no_yes[] = {"no", "yes"};
    static const char *const codecs[CODECS] = {"none", "fp16", "bf16", "topk", "onebit"};
    const struct {
        struct item_kind kind;
        const char *text;
        struct list *list;
    } all[] = {
        {{"workers", NULL, 0, 1, 64}, o->workers, &l->workers},
        {{"servers", NULL, 0, 1, PS_SERVERS_MAX}, o->servers, &l->servers},
        {{"connections", NULL, 0, 1, PS_CONNECTIONS_PER_PAIR_MAX}, o->connections, &l->connections},
        {{"bytes", NULL, 0, 4, (uint64_t)4 << 30}, o->bytes, &l->bytes},
        {{"partition-bytes", NULL, 0, PARTITION_BYTES_MIN, PARTITION_BYTES_MAX},
         o->partition_bytes,
         &l->partitions},
        {{"transport", ps_transport_names, PS_TRANSPORTS, 0, 0}, o->transport, &l->transports},
        {{"kinds", ps_kind_names, PS_KINDS, 0, 0}, o->kinds, &l->kinds},
        {{"compression", codecs, CODECS, 0, 0}, o->compression, &l->codecs},
        {{"tls", no_yes, 2, 0, 0}, o->tls, &l->tls},
    };
    enum status status = STATUS_OK;

    for (size_t i = 0; status == STATUS_OK && i < sizeof(all) / sizeof(all[0]); i++)
        status = read_list(&all[i].kind, all[i].text, all[i].list, err);
    for (size_t i = 0; status == STATUS_OK && i < l->bytes.length; i++)
        if (l->bytes.items[i] % sizeof(float) != 0)
            status = error_set(err, STATUS_INVALID, "--bytes: multiples of 4");
    for (size_t i = 0; status == STATUS_OK && i < l->partitions.length; i++)
        if (l->partitions.items[i] % sizeof(float) != 0)
            status = error_set(err, STATUS_INVALID, "--partition-bytes: multiples of 4");
    for (size_t i = 0; status == STATUS_OK && i < l->tls.length; i++)
        if (l->tls.items[i] && (!o->tls_ca[0] || !o->tls_cert[0] || !o->tls_key[0]))
            status = error_set(err, STATUS_INVALID,
                               "--tls yes needs --tls-ca, --tls-cert and --tls-key");
    return status;
}

/* ---- cases ---- */

/* True when the kind supports the transport, codec, TLS and connections of the case. */
static bool series_exists(const struct ps_series *s, const struct ps_case *c)
{
    enum ps_kind kind = s->kind;
    enum ps_transport transport = s->transport;

    if (s->codec != CODEC_NONE && transport == PS_SHM)
        return false;
    if (kind == PS_REPLICA)
        return transport != PS_SHM;
    if (kind == PS_TORCH_RPC)
        return transport != PS_UNIX && !c->tls && c->connections == 1;
    if (transport == PS_SHM)
        return kind == PS_EXCHANGE && !c->tls;
    return !(kind == PS_SOCKET && c->tls);
}

/* The series that exist for a case; those of exchange once for each compression. */
static size_t list_series(const struct lists *l, const struct ps_case *c, struct ps_series *series)
{
    size_t all = l->transports.length * l->kinds.length * l->codecs.length, length = 0;

    for (size_t i = 0; i < all && length < SERIES_MAX; i++) {
        size_t codec = i % l->codecs.length, rest = i / l->codecs.length;
        struct ps_series *s = &series[length];

        s->kind = (enum ps_kind)l->kinds.items[rest % l->kinds.length];
        s->transport = (enum ps_transport)l->transports.items[rest / l->kinds.length];
        s->codec = s->kind == PS_EXCHANGE ? (enum codec_kind)l->codecs.items[codec] : CODEC_NONE;
        if ((s->kind == PS_EXCHANGE || codec == 0) && series_exists(s, c))
            length++;
    }
    return length;
}

static enum status measure_case(const struct ps_plan *plan, const struct lists *l,
                                const struct ps_case *c, struct ps_table *table, size_t *measured,
                                struct error *err)
{
    struct ps_series series[SERIES_MAX] = {{.wrong = 0}};
    size_t length = list_series(l, c, series);
    enum status status = STATUS_OK;

    for (size_t i = 0; status == STATUS_OK && i < length; i++)
        status = mem_calloc(plan->rounds, sizeof(double), "times", &series[i].seconds, err);
    *measured += length;
    if (status == STATUS_OK && length > 0)
        status = ps_run(plan, c, series, length, err);
    if (status == STATUS_OK)
        status = ps_table_add(table, c, series, length, err);
    for (size_t i = 0; i < length; i++)
        free(series[i].seconds);
    return status;
}

static size_t iterations_of(const struct ps_options *o, uint64_t bytes)
{
    uint64_t count = TURN_BYTES / bytes;

    if (o->iterations > 0)
        return (size_t)o->iterations;
    return count < 1 ? 1 : count > TURN_MAX ? TURN_MAX : (size_t)count;
}

/* Case number `index` of all, read as a mixed-radix number with one digit per list. */
static struct ps_case case_at(const struct ps_options *o, const struct lists *l, size_t index)
{
    struct ps_case c = {.workers = 0};

    c.workers = (unsigned)l->workers.items[index % l->workers.length];
    index /= l->workers.length;
    c.servers = (unsigned)l->servers.items[index % l->servers.length];
    index /= l->servers.length;
    c.connections = (unsigned)l->connections.items[index % l->connections.length];
    index /= l->connections.length;
    c.bytes = l->bytes.items[index % l->bytes.length];
    index /= l->bytes.length;
    c.partition_bytes = l->partitions.items[index % l->partitions.length];
    index /= l->partitions.length;
    c.tls = l->tls.items[index] != 0;
    c.iterations = iterations_of(o, c.bytes);
    return c;
}

static enum status measure_cases(const struct ps_options *o, const struct lists *l,
                                 struct ps_table *table, struct error *err)
{
    const struct ps_plan plan = {
        .rounds = (size_t)o->rounds,
        .warmup = (size_t)o->warmup,
        .timeout_ms = o->timeout_ms,
        .python = o->python,
        .peer = o->peer,
        .security = {.ca_file = o->tls_ca, .cert_file = o->tls_cert, .key_file = o->tls_key},
    };
    size_t cases = l->workers.length * l->servers.length * l->connections.length * l->bytes.length *
                   l->partitions.length * l->tls.length;
    enum status status = STATUS_OK;
    size_t measured = 0;

    ps_table_open(table, &plan);
    for (size_t i = 0; status == STATUS_OK && i < cases; i++) {
        struct ps_case c = case_at(o, l, i);

        status = measure_case(&plan, l, &c, table, &measured, err);
    }
    if (status == STATUS_OK && measured == 0)
        status = error_set(err, STATUS_INVALID,
                           "nothing to measure: no kind goes with --transport %s, --compression %s "
                           "and --tls %s",
                           o->transport, o->compression, o->tls);
    return status;
}

static enum status run_bench_ps(const void *options, const struct option_result *origins,
                                struct error *err)
{
    const struct ps_options *o = options;
    struct lists lists = {.workers.length = 0};
    struct ps_table table = {.wrong = 0};
    enum status status = stop_install(err);

    (void)origins;
    if (status == STATUS_OK)
        status = read_lists(o, &lists, err);
    if (status != STATUS_OK)
        return status;
    status = measure_cases(o, &lists, &table, err);
    if (status == STATUS_OK && o->json[0] != '\0')
        status = bench_report_write(&table.report, o->json, err);
    if (status == STATUS_OK && table.wrong > 0)
        status = error_set(err, STATUS_DATA, "%" PRIu64 " elements were not as they must be",
                           table.wrong);
    ps_table_release(&table);
    return status;
}

int bench_ps_main(int argc, char **argv)
{
    static const struct program program = {
        .set = &option_set,
        .options_size = sizeof(struct ps_options),
        .run = run_bench_ps,
    };

    if (argc > 1 && strcmp(argv[1], BENCH_PS_WORKER) == 0)
        return bench_ps_worker(argc, argv);
    if (argc > 1 && strcmp(argv[1], BENCH_PS_SERVER) == 0)
        return bench_ps_server(argc, argv);
    return program_main(&program, argc, argv);
}
