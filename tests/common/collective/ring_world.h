/*
 * ring_world: n ranks of one group for a test, over a file store in the test's folder, as threads
 * of this process.
 */
#ifndef SPARRING_TESTS_COMMON_COLLECTIVE_RING_WORLD_H
#define SPARRING_TESTS_COMMON_COLLECTIVE_RING_WORLD_H

#include "tests/support/support.h"

#include "common/collective/collective.h"

#include <stdbool.h>

#define WORLD_RANKS_MAX 8

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

#endif
