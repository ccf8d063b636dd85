/*
 * thread: starting a thread that takes no signals: they go to the threads of the program, whose
 * waits they must interrupt.
 */
#ifndef SPARRING_COMMON_BASE_THREAD_H
#define SPARRING_COMMON_BASE_THREAD_H

#include <pthread.h>

/* pthread_create with all signals blocked in the new thread; returns 0 or an errno value. */
int thread_start(pthread_t *ret_thread, void *(*run)(void *), void *user);

#endif
