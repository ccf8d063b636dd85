/*
 * ps_grpc: shared by worker and server of kinds grpc-echo and grpc-sum; the only sources outside
 * common/rpc that use gRPC: they measure it without common/rpc, but under the same conditions.
 *
 *   ps_grpc.c         library, queues, credentials
 *   ps_grpc_server.c  sends every message back unchanged; of grpc-sum, adds it before
 *   ps_grpc_worker.c  an iteration: sends all pieces and copies the replies into the result
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_PS_GRPC_H
#define SPARRING_EXPERIMENTS_BENCH_PS_GRPC_H

#include "experiments/bench/bench_ps.h"

#include <grpc/grpc.h>
#include <string.h>

#define PS_GRPC_METHOD "/sparring.bench.v1.Echo/Exchange"

/* Flow control as common/rpc sets it inside a host: see rpc_has_fixed_windows. */
#define PS_GRPC_IS_FIXED(address)    (strncmp(address, "unix:", 5) != 0)
#define PS_GRPC_FRAME_BYTES(address) (PS_GRPC_IS_FIXED(address) ? 1 << 20 : 16 << 10)

/* The tag of a batch; `complete` runs on the queue's thread. */
struct tag {
    void (*complete)(struct tag *tag, bool ok);
    void *owner;
};

void ps_grpc_init(void);

/* Run the completions of a queue until it is shut down; ps_grpc_run_thread is the same as a thread
 * function. */
void ps_grpc_run(grpc_completion_queue *queue);
void *ps_grpc_run_thread(void *queue);

bool ps_grpc_start(grpc_call *call, const grpc_op *ops, size_t count, struct tag *tag);
grpc_arg ps_grpc_integer(const char *key, int value);

struct pem {
    char *ca, *cert, *key; /* owned */
};

bool ps_grpc_is_tls(const struct ps_words *words);

/* Release *pem after a failure, too. */
enum status ps_grpc_read_pem(const struct rpc_security *security, struct pem *pem,
                             struct error *err);
void ps_grpc_release_pem(struct pem *pem);

#endif
