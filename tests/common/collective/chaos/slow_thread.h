/*
 * slow_thread: makes one thread of this process slow, and no other: the mesh's thread goes on to
 * send its heartbeats and to answer, and the process is never stopped.
 */
#ifndef SPARRING_TESTS_COMMON_COLLECTIVE_SLOW_THREAD_H
#define SPARRING_TESTS_COMMON_COLLECTIVE_SLOW_THREAD_H

#include "common/base/error.h"

#include <stdint.h>

/* From now on and until `until_ns` the calling thread runs for half a millisecond at a time, and
 * sleeps in between, wherever it is: waits end with EINTR.  Once per process. */
enum status slow_thread_begin(int64_t until_ns, struct error *err);

#endif
