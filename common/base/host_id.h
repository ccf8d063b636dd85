/*
 * host_id: identifies ranks that can share memory.  Equal texts mean the same running kernel,
 * network namespace, /dev/shm and user, so the ranks can pass descriptors over a Unix socket.
 */
#ifndef SPARRING_COMMON_BASE_HOST_ID_H
#define SPARRING_COMMON_BASE_HOST_ID_H

#include <stddef.h>

#define HOST_ID_SIZE 96

/* This rank's text: `wanted` unless NULL or empty, else SPARRING_HOSTID, else the detected one.
 * SPARRING_HOSTID separates ranks of one host on purpose (to test communication between hosts);
 * equal values on different hosts make opening the shm backend fail. */
void host_id_find(const char *wanted, char text[HOST_ID_SIZE]);

#endif
