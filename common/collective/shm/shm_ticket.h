/*
 * shm_ticket: one message between two ranks of the shm backend, with at most one descriptor of
 * shared memory.  Private to the shm_*.c files.
 *
 * Sequence packets: a ticket arrives whole, with its descriptor, or not at all.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_SHM_TICKET_H
#define SPARRING_COMMON_COLLECTIVE_SHM_TICKET_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define SHM_TOKEN_BYTES 16

struct shm_ticket {
    unsigned char token[SHM_TOKEN_BYTES]; /* of the receiver: strangers do not know it */
    uint32_t rank;                        /* of the sender */
    uint32_t has_memory;
    uint64_t size; /* bytes of it */
};

/* A socket for tickets that does not block; -1 with errno. */
int shm_ticket_socket(void);

/* Wait for poll's `events`.  STATUS_TIMEOUT. */
enum status shm_ticket_poll(int fd, short events, int64_t deadline_ns, struct error *err);

/* memory_fd: borrowed; -1: none. */
enum status shm_ticket_send(int fd, const struct shm_ticket *ticket, int memory_fd,
                            int64_t deadline_ns, struct error *err);

/* *ret_fd is the caller's, and -1 when none came.  STATUS_PROTOCOL for a wrong token and the like.
 */
enum status shm_ticket_receive(int fd, const unsigned char *token, int64_t deadline_ns,
                               struct shm_ticket *ret, int *ret_fd, struct error *err);

#endif
