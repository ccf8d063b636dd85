/*
 * shared_memory: an anonymous mapping that other processes of this host can map too.  It has no
 * name (memfd_create), so a killed process leaves nothing behind, and only processes that received
 * the file descriptor can map it.
 */
#ifndef SPARRING_COMMON_BASE_SHARED_MEMORY_H
#define SPARRING_COMMON_BASE_SHARED_MEMORY_H

#include "common/base/error.h"

#include <stddef.h>

struct shared_memory {
    void *base;  /* page-aligned; NULL: none */
    size_t size; /* bytes, a multiple of the page size */
    int fd;      /* owned; -1: none */
};

#define SHARED_MEMORY_NONE ((struct shared_memory){.fd = -1})

/* At least `size` zeroed bytes.  Sealed against shrinking, so a peer's mapping never faults.
 * `what` names it in errors and in /proc/<pid>/maps.  STATUS_NO_MEMORY, STATUS_IO. */
enum status shared_memory_open(size_t size, const char *what, struct shared_memory *ret,
                               struct error *err);

/* Map a descriptor that a peer sent; consumes the descriptor also on failure.  STATUS_PROTOCOL when
 * it is not sealed memory of at least `size` bytes. */
enum status shared_memory_map(int fd, size_t size, struct shared_memory *ret, struct error *err);

/* The same, mapped read-only. */
enum status shared_memory_map_read_only(int fd, size_t size, struct shared_memory *ret,
                                        struct error *err);

/* Move m's contents to new memory at the same address: processes that have the old descriptor keep
 * the old memory and cannot reach the new one.  A fence against a process that is considered dead
 * but may still write.  On failure m is unchanged. */
enum status shared_memory_renew(struct shared_memory *m, const char *what, struct error *err);

/* Unmap and close; SHARED_MEMORY_NONE and zeroed structs with fd -1 allowed. */
void shared_memory_release(struct shared_memory *m);

#endif
