/*
 * ps_grpc: kind grpc-echo, the bandwidth of gRPC's C core alone in the same pattern, which is the
 * ceiling of exchange.  As many connections from each worker to each server, one stream on each,
 * messages of one partition, as many completion queues with a thread each as sparring-server has.
 * The server sends every message back by reference; the worker copies it into the result, since
 * training needs a contiguous gradient.  No headers, no job state, and no sum but with kind
 * grpc-sum.
 */
#include "experiments/bench/ps_grpc.h"

#include "common/base/file.h"

#include <malloc.h>
#include <stdlib.h>

#define PEM_MAX    ((size_t)1 << 20)
#define TRIM_BYTES (256 << 20)
#define MMAP_BYTES (32 << 20)

/* Tune glibc's allocator as common/rpc does, or the ceiling would be lower by a third: otherwise
 * freed slices return to the kernel and are allocated again for each message.  As there, gRPC core
 * is never shut down. */
void ps_grpc_init(void)
{
    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    grpc_init();
}

void ps_grpc_run(grpc_completion_queue *queue)
{
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);

        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return;
        if (event.type == GRPC_OP_COMPLETE)
            ((struct tag *)event.tag)->complete(event.tag, event.success != 0);
    }
}

void *ps_grpc_run_thread(void *user)
{
    ps_grpc_run(user);
    return NULL;
}

bool ps_grpc_start(grpc_call *call, const grpc_op *ops, size_t count, struct tag *tag)
{
    return grpc_call_start_batch(call, ops, count, tag, NULL) == GRPC_CALL_OK;
}

grpc_arg ps_grpc_integer(const char *key, int value)
{
    union {
        const char *constant;
        char *plain;
    } name = {.constant = key};

    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = name.plain, .value.integer = value};
}

/* ---- credentials ---- */

bool ps_grpc_is_tls(const struct ps_words *words)
{
    return words->security.ca_file[0] != '\0';
}

enum status ps_grpc_read_pem(const struct rpc_security *security, struct pem *pem,
                             struct error *err)
{
    size_t size;
    enum status status = file_read(security->ca_file, PEM_MAX, &pem->ca, &size, err);

    if (status == STATUS_OK)
        status = file_read(security->cert_file, PEM_MAX, &pem->cert, &size, err);
    if (status == STATUS_OK)
        status = file_read(security->key_file, PEM_MAX, &pem->key, &size, err);
    return status;
}

void ps_grpc_release_pem(struct pem *pem)
{
    free(pem->ca);
    free(pem->cert);
    free(pem->key);
}
