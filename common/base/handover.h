/*
 * handover: passes file descriptors of shared memory between processes of one user on one host.
 *
 * One side listens on an abstract Unix socket, whose name is random and which creates no file; the
 * other connects.  Both sides send messages with at most one descriptor each.  A receiver checks
 * that the peer runs as the same user and that the message contains the receiver's token, which the
 * peer obtained over another channel.  SOCK_SEQPACKET: a message arrives whole, with its
 * descriptor, or not at all.
 */
#ifndef SPARRING_COMMON_BASE_HANDOVER_H
#define SPARRING_COMMON_BASE_HANDOVER_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

#define HANDOVER_TOKEN_BYTES 16
#define HANDOVER_NAME_SIZE   64

struct handover_message {
    unsigned char token[HANDOVER_TOKEN_BYTES]; /* of the receiver: a secret */
    uint32_t sender; /* the sender's rank; of a server: HANDOVER_TAKES_CHANNEL or 0 */
    uint32_t has_memory;
    uint64_t size;    /* bytes of the memory */
    uint64_t session; /* of the sender; 0: it has no session */
};

/* A server's reply: the worker may send a channel (channel.h) and its bell next, each with a
 * message of its own; the reply is the bell of the server. */
#define HANDOVER_TAKES_CHANNEL 1

/* A random socket name and a random token. */
enum status handover_generate(char name[HANDOVER_NAME_SIZE],
                              unsigned char token[HANDOVER_TOKEN_BYTES], struct error *err);

/* Format both as one word of text, to be sent to a peer over another channel, and parse it; false:
 * malformed. */
#define HANDOVER_ADDRESS_SIZE (HANDOVER_NAME_SIZE + 2 * HANDOVER_TOKEN_BYTES + 1)
void handover_format(const char *name, const unsigned char token[HANDOVER_TOKEN_BYTES],
                     char text[HANDOVER_ADDRESS_SIZE]);
bool handover_parse(const char *text, char name[HANDOVER_NAME_SIZE],
                    unsigned char token[HANDOVER_TOKEN_BYTES]);

/* Listen under that name; the socket does not block and is the caller's to close. */
enum status handover_listen(const char *name, int *ret_fd, struct error *err);

/* Connect to that name until deadline_ns; the listener must run as this process's user.
 * STATUS_UNREACHABLE: no process listens. */
enum status handover_connect(const char *name, int64_t deadline_ns, int *ret_fd, struct error *err);

/* Does the peer of a connection run as this process's user? */
bool handover_is_our_user(int fd);

/* memory_fd: borrowed; -1: none. */
enum status handover_send(int fd, const struct handover_message *message, int memory_fd,
                          int64_t deadline_ns, struct error *err);

/* *ret_fd is owned by the caller, -1 when the message has no descriptor.  STATUS_PROTOCOL: a wrong
 * token, a wrong size, or has_memory that does not match the descriptor. */
enum status handover_receive(int fd, const unsigned char *token, int64_t deadline_ns,
                             struct handover_message *ret, int *ret_fd, struct error *err);

#endif
