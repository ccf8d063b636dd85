/*
 * ps_grpc: what the two ends of kind grpc-echo share; the only sources outside common/rpc that know
 * gRPC: they measure it without common/rpc, but under the same conditions.
 *   ps_grpc.c         library, queues, credentials
 *   ps_grpc_server.c  every message goes back as it came
 *   ps_grpc_worker.c  an iteration: all pieces out, and back to their places
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_PS_GRPC_H
#define SPARRING_EXPERIMENTS_BENCH_PS_GRPC_H

#include "experiments/bench/bench_ps.h"

#include <grpc/grpc.h>
#include <string.h>

#define PS_GRPC_METHOD "/sparring.bench.v1.Echo/Exchange"

/* Flow control as common/rpc sets it inside a host: see rpc_has_fixed_windows. */
#define PS_GRPC_IS_FIXED(place)    (strncmp(place, "unix:", 5) != 0)
#define PS_GRPC_FRAME_BYTES(place) (PS_GRPC_IS_FIXED(place) ? 1 << 20 : 16 << 10)

/* Of a batch: complete runs on the queue's thread. */
struct tag {
    void (*complete)(struct tag *tag, bool ok);
    void *owner;
};

void ps_grpc_init(void);

/* Until the queue is shut down; ps_grpc_run_thread: the same as a thread, of a queue. */
void ps_grpc_run(grpc_completion_queue *queue);
void *ps_grpc_run_thread(void *queue);

bool ps_grpc_start(grpc_call *call, const grpc_op *ops, size_t count, struct tag *tag);
grpc_arg ps_grpc_integer(const char *key, int value);

struct pem {
    char *ca, *cert, *key; /* owned */
};

bool ps_grpc_is_tls(const struct ps_words *words);

/* To be released after a failure, too. */
enum status ps_grpc_read_pem(const struct rpc_security *security, struct pem *pem,
                             struct error *err);
void ps_grpc_release_pem(struct pem *pem);

#endif
