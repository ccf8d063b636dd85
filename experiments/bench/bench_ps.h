/*
 * bench_ps: shared by the sources of `sparring bench ps`.
 *
 * A case is the shape of a job (workers, servers, connections of each pair, bytes, partition, TLS).
 * Its series are ways to move the same bytes: kinds (ours, gRPC alone, plain sockets, PyTorch) over
 * transports.  All processes of all series of a case are started together; then, in every round,
 * each series has its turn while the others block on a pipe.  So a drift of the machine affects all
 * series alike.
 *
 * A worker process reads lines from stdin, each the number of iterations of a turn, and writes for
 * each "SECONDS WRONG" to stdout: the time of one iteration, and the number of elements of all
 * results that were wrong or missing.  Its first line is "ready" or "unavailable REASON".  It ends
 * at the end of stdin.  The time of a turn is that of the slowest worker.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_PS_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_PS_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/base/shared_memory.h"
#include "common/codec/codec.h"
#include "common/rpc/rpc.h"
#include "experiments/bench/bench_report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* argv[1] of processes that bench ps starts. */
#define BENCH_PS_WORKER "--as-worker"
#define BENCH_PS_SERVER "--as-server"

#define PS_SERVERS_MAX              64
#define PS_CONNECTIONS_PER_PAIR_MAX 16
/* Connections of a worker. */
#define PS_CONNECTIONS_MAX ((size_t)PS_SERVERS_MAX * PS_CONNECTIONS_PER_PAIR_MAX)

enum ps_kind {
    PS_EXCHANGE,  /* our workers and servers, with the sum */
    PS_GRPC_ECHO, /* gRPC C core alone: the server sends every message back unchanged */
    PS_GRPC_SUM,  /* the same, and the server adds each byte once */
    PS_SOCKET,    /* plain sockets: the server receives a piece and sends it back */
    PS_TORCH_RPC, /* PyTorch's RPC parameter server, with the sum */
    PS_REPLICA,   /* exchange, with a replica for each server */
    PS_STATE,     /* exchange, with a state folder for each server */
    PS_KINDS
};
enum ps_transport { PS_TCP, PS_UNIX, PS_SHM, PS_TRANSPORTS };

extern const char *const ps_kind_names[PS_KINDS];           /* "grpc-echo" */
extern const char *const ps_transport_names[PS_TRANSPORTS]; /* "tcp" */

struct ps_case {
    unsigned workers, servers;
    unsigned connections;   /* of each worker to each server */
    size_t bytes;           /* of each worker's gradient, a multiple of 4 */
    size_t partition_bytes; /* as --partition-bytes of the worker */
    bool tls;
    size_t iterations; /* of a turn */
};

struct ps_plan {
    size_t rounds, warmup; /* measured rounds, and those before them */
    int64_t timeout_ms;    /* for a process to become ready, or for a turn */
    const char *python;    /* interpreter with PyTorch; borrowed, like the members below */
    const char *peer;      /* its script; "": ours */
    struct rpc_security security;
};

struct ps_series {
    enum ps_kind kind;
    enum ps_transport transport;
    enum codec_kind codec;     /* both ways; exchange only */
    char note[256];            /* why it was not measured; "" when it was */
    double *seconds;           /* owned, plan->rounds of them, in order of rounds */
    uint64_t wrong;            /* wrong elements, over all turns */
    double server_cpu_seconds; /* of all servers in all measured turns */
    uint64_t server_rss_bytes; /* largest peak of one server since its start */
};

/* Measure all series of one case.  A series whose program is missing gets a note. */
enum status ps_run(const struct ps_plan *plan, const struct ps_case *c, struct ps_series *series,
                   size_t length, struct error *err);

/* ---- the processes ---- */

/* The arguments of a worker or an echo server, in this order after argv[1]. */
struct ps_words {
    uint64_t kind;
    uint64_t rank; /* of the worker, or index of the server */
    uint64_t workers, servers, bytes, partition_bytes, timeout_ms;
    uint64_t transport, connections, codec;
    const char *address; /* of a worker: servers "H:P,H:P" and then their replicas; of a server: the
                            address on which it listens */
    const char *port_file;
    struct rpc_security security;
};
#define PS_WORD_COUNT 15

int bench_ps_worker(int argc, char **argv);
int bench_ps_server(int argc, char **argv);

/* One kind of worker. */
struct ps_worker {
    struct ps_words words;
    size_t count;  /* float32 of the gradient */
    float *values; /* (count), owned by the caller: the gradient, overwritten by the result */
    struct shared_memory memory; /* holds values, then as many parameters; base NULL: none */
    struct endpoint servers[PS_SERVERS_MAX];
    size_t server_count;
    uint64_t received; /* bytes of the last iteration, of words.bytes, uncompressed size */
    void *impl;
};

struct ps_worker_ops {
    bool sums; /* the result is the mean over workers; else the worker's own gradient */
    enum status (*open)(struct ps_worker *w, struct error *err);
    /* Push and pull all values once, and add the received bytes to w->received. */
    enum status (*iterate)(struct ps_worker *w, struct error *err);
    void (*close)(struct ps_worker *w, const struct error *failure); /* NULL: success */
};
extern const struct ps_worker_ops ps_exchange_worker, ps_grpc_worker, ps_socket_worker;

/* A server: listen, write the port file (ps_write_port), serve until the process is ended. */
enum status ps_grpc_serve(const struct ps_words *words, struct error *err);
enum status ps_socket_serve(const struct ps_words *words, struct error *err);
enum status ps_write_port(const struct ps_words *words, uint16_t port, struct error *err);

/* Pieces of a worker's values: piece i (of ps_pieces) belongs to server i % servers, as partitions
 * do, and there to connection (i / servers) % connections.  So connection k of a worker, which goes
 * to server k % servers, carries the pieces k, k + servers * connections, ... */
size_t ps_pieces(const struct ps_words *words);
void ps_piece(const struct ps_words *words, size_t index, size_t *ret_offset, size_t *ret_bytes);

/* ---- the results ---- */

struct ps_table {
    size_t rounds;
    struct bench_report report;
    uint64_t wrong;
};

void ps_table_open(struct ps_table *t, const struct ps_plan *plan);
/* Rows and ratios on stdout, rows in the report; series[].seconds may be reordered. */
enum status ps_table_add(struct ps_table *t, const struct ps_case *c, struct ps_series *series,
                         size_t length, struct error *err);
void ps_table_release(struct ps_table *t);

#endif
