/*
 * Threads that take no signals: a new thread inherits the mask of the one that creates it.
 * No state.
 */
#include "common/base/thread.h"

#include <signal.h>

int thread_start(pthread_t *ret_thread, void *(*run)(void *), void *user)
{
    sigset_t all, before;
    int failed;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(ret_thread, NULL, run, user);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}
