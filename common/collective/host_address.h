/*
 * host_address: the address at which the other ranks reach this one.
 */
#ifndef SPARRING_COMMON_COLLECTIVE_HOST_ADDRESS_H
#define SPARRING_COMMON_COLLECTIVE_HOST_ADDRESS_H

#include "common/base/net.h"

#define HOST_ADDRESS_SIZE (sizeof(((struct endpoint *)0)->host))

/* Write an address into host (HOST_ADDRESS_SIZE):
 *   wanted  an address or the name of an interface, taken as it is; NULL or "": find one
 *   store   "tcp://host:port": the local address that reaches it; anything else (a file, a store on
 *           loopback) means one host, and gives 127.0.0.1 */
void host_address_choose(const char *wanted, const char *store, char *host);

#endif
