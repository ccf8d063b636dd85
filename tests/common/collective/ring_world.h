/*
 * ring_world: n ranks of one group for a test, over a file store in the test's folder or
 * a gRPC store: threads of this process, or child processes that may be killed or stopped.
 */
#ifndef SPARRING_TESTS_COMMON_COLLECTIVE_RING_WORLD_H
#define SPARRING_TESTS_COMMON_COLLECTIVE_RING_WORLD_H

#include "tests/support/support.h"

#include "common/collective/collective.h"

#include <stdbool.h>
#include <sys/types.h>

#define WORLD_RANKS_MAX 8

/* Stores of this test are gRPC from now on, with rank 0 as the host; call before the first world.
 */
void world_use_grpc(void);

/* A store handle of one rank; all worlds of one test share the file, so group names must differ. */
struct store *world_store(unsigned rank, unsigned size, struct error *err);

enum status world_open(const char *backend, const char *name, unsigned rank, unsigned size,
                       struct store *store, int64_t timeout_ms, struct collective **ret_group,
                       struct error *err);

typedef void world_body(struct collective *group, unsigned rank, unsigned size, void *argument);

/* Can ranks of this backend be threads of one process here?  MPI and NCCL need processes; libraries
 * that are not built with ThreadSanitizer hide their locks from it. */
bool world_on_threads(const char *backend);

/* Run `body` on `size` threads, each with a group of its own that is closed afterwards. */
void world_run(const char *backend, unsigned size, world_body *body, void *argument);

/* ---- processes ---- */

/* What a rank has to say when it ends. */
struct world_report {
    enum status status;
    int64_t ended_ns;
    char text[2048];
};

struct world_process {
    pid_t pid;
    int ready_fd;  /* one byte per operation that ended well */
    int report_fd; /* a struct world_report */
};

/* Start `size` processes that all-reduce `count` floats over and over until one call fails. */
void world_start(unsigned size, size_t count, int64_t timeout_ms, struct world_process *processes);

/* Wait until the rank has ended `operations` operations. */
void world_await(const struct world_process *process, unsigned operations);

/* Wait for a rank's report; fails the test when none comes within wait_ms. */
struct world_report world_report_of(const struct world_process *process, int64_t wait_ms);

/* Kill what is left and wait for it. */
void world_end(const struct world_process *processes, unsigned size);

#endif
