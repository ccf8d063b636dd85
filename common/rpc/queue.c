/*
 * queue: completion queues with one thread each, and the initialisation of the gRPC library.
 *
 * One thread per queue: a second one on the same queue only adds hand-offs (1 MiB messages on one
 * connection: 2.5 GB/s with one thread, 1.5 with two).  The thread blocks all signals.  The queue's
 * fields are set before its thread runs or belong to that thread.
 */
#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/rpc/rpc_internal.h"

#include <grpc/support/log.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define TRIM_BYTES (256 << 20)
#define MMAP_BYTES (32 << 20)

static void *poll_queue(void *user)
{
    struct rpc_queue *queue = user;

    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(queue->grpc, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);

        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type == GRPC_OP_COMPLETE) {
            struct rpc_tag *tag = event.tag;

            tag->complete(tag, event.success != 0);
        }
    }
}

enum status rpc_queue_start(struct rpc_queue *queue, const char *name, struct error *err)
{
    int failed = thread_start(&queue->thread, poll_queue, queue);

    if (failed)
        return error_set_errno(err, failed, "cannot start thread '%s'", name);
    queue->started = true;
    (void)pthread_setname_np(queue->thread, name);
    return STATUS_OK;
}

bool rpc_queue_is_current(const struct rpc_queue *queue)
{
    return pthread_equal(pthread_self(), queue->thread) != 0;
}

void rpc_queue_stop(struct rpc_queue *queue)
{
    if (!queue->grpc)
        return;
    grpc_completion_queue_shutdown(queue->grpc);
    if (queue->started)
        (void)pthread_join(queue->thread, NULL);
    else
        (void)poll_queue(queue); /* drains the queue and returns at the shut-down event */
    grpc_completion_queue_destroy(queue->grpc);
    queue->grpc = NULL;
    queue->started = false;
}

/* Core's log is for its developers; errors that matter to the user are returned by calls.  One
 * event appears in the log only: after a failed accept (too many open files) core never accepts
 * again. */
static void filter_core_log(gpr_log_func_args *line)
{
    if (line->message && strstr(line->message, "Failed accept4"))
        log_error("gRPC stopped accepting connections until this program is restarted: %s",
                  line->message);
}

/* Core reads into new 64 KiB blocks and frees them once consumed, often on another thread.  By
 * default the allocator returns such memory to the kernel and faults it in again, which doubles the
 * time of a stream; with one arena per thread, blocks are not reused across threads. */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    (void)mallopt(M_ARENA_MAX, 1);
    (void)mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
    (void)mallopt(M_MMAP_THRESHOLD,
                  MMAP_BYTES); /* setting the trim threshold disables this one's growth */
#endif
}

static void start_library(void)
{
    keep_freed_memory();
    if (!getenv("GRPC_VERBOSITY"))
        gpr_set_log_function(filter_core_log);
    grpc_init();
}

/* Never shut down: the last grpc_shutdown joins core's helper thread, which may be inside a 10 s
 * poll for a blocked write (iomgr/tcp_posix.cc, run_poller), so a program would sometimes end 10 s
 * late.  Only a few idle threads remain until exit. */
void rpc_library_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, start_library);
}

grpc_arg rpc_channel_arg(const char *key, int value)
{
    grpc_arg arg = {.type = GRPC_ARG_INTEGER};

    memcpy(&arg.key, &key, sizeof(key)); /* core reads the key but declares it mutable */
    arg.value.integer = value;
    return arg;
}

bool rpc_has_fixed_windows(const struct endpoint *endpoint)
{
    return endpoint_is_loopback(endpoint) && !endpoint_unix_path(endpoint);
}

const char *rpc_library_version(void)
{
    return grpc_version_string();
}
