/*
 * privilege: the right to make network namespaces.
 */
#ifndef SPARRING_EXPERIMENTS_NETWORK_PRIVILEGE_H
#define SPARRING_EXPERIMENTS_NETWORK_PRIVILEGE_H

#include "common/base/error.h"

#include <stdbool.h>

/* This process gets CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_NET_RAW, for itself and the programs that
 * it starts: nothing changes where it has them, else it moves into a user namespace of its own,
 * with the same user (*ret_is_new).  STATUS_UNSUPPORTED with what is missing where the kernel
 * forbids that. Threads: only in a single-threaded process. */
enum status privilege_obtain(bool *ret_is_new, struct error *err);

/* Between fork and exec: the program gets none of them (where they are of the user namespace). */
void privilege_drop(void);

#endif
