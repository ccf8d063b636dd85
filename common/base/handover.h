/*
 * handover: how a process lets another one of the same user and host see its shared memory.
 *
 * One side listens on an abstract Unix socket, whose name nobody can guess and which leaves no file
 * behind; the other connects, and tickets go both ways, each with at most one descriptor.  Whoever
 * takes one checks that the peer's user is its own and that the ticket has the token that was told
 * to the peer by other means.  Sequence packets: a ticket arrives whole, with its descriptor, or
 * not at all.
 */
#ifndef SPARRING_COMMON_BASE_HANDOVER_H
#define SPARRING_COMMON_BASE_HANDOVER_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define HANDOVER_TOKEN_BYTES 16
#define HANDOVER_NAME_SIZE   64

struct handover_ticket {
    unsigned char token[HANDOVER_TOKEN_BYTES]; /* of the receiver: strangers do not know it */
    uint32_t sender;                           /* its rank */
    uint32_t has_memory;
    uint64_t size;    /* bytes of it */
    uint64_t session; /* of the sender; 0 where there are none */
};

/* A socket's name and a token, drawn at random. */
enum status handover_draw(char name[HANDOVER_NAME_SIZE], unsigned char token[HANDOVER_TOKEN_BYTES],
                          struct error *err);

/* Both as one word of text, to be told to a peer by other means, and back; false: it is none. */
#define HANDOVER_ADDRESS_SIZE (HANDOVER_NAME_SIZE + 2 * HANDOVER_TOKEN_BYTES + 1)
void handover_format(const char *name, const unsigned char token[HANDOVER_TOKEN_BYTES],
                     char text[HANDOVER_ADDRESS_SIZE]);
bool handover_parse(const char *text, char name[HANDOVER_NAME_SIZE],
                    unsigned char token[HANDOVER_TOKEN_BYTES]);

/* Listen under that name; the socket does not block and is the caller's to close. */
enum status handover_listen(const char *name, int *ret_fd, struct error *err);

/* Connect to who listens there, which must be this process's user, until deadline_ns.
 * STATUS_UNREACHABLE: nobody does. */
enum status handover_connect(const char *name, int64_t deadline_ns, int *ret_fd, struct error *err);

/* Is the other end of a connection this process's user? */
bool handover_is_our_user(int fd);

/* Wait for poll's `events`.  STATUS_TIMEOUT. */
enum status handover_poll(int fd, short events, int64_t deadline_ns, struct error *err);

/* memory_fd: borrowed; -1: none. */
enum status handover_send(int fd, const struct handover_ticket *ticket, int memory_fd,
                          int64_t deadline_ns, struct error *err);

/* *ret_fd is the caller's, and -1 when none came.  STATUS_PROTOCOL for a wrong token and the like.
 */
enum status handover_receive(int fd, const unsigned char *token, int64_t deadline_ns,
                             struct handover_ticket *ret, int *ret_fd, struct error *err);

#endif
