/*
 * child: one rank or server: a process in a session and process group of its own, so that a signal
 * reaches all that it starts.  It gets SIGKILL when this process dies.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_CHILD_H
#define SPARRING_EXPERIMENTS_LAUNCH_CHILD_H

#include "common/base/error.h"
#include "experiments/launch/keeper.h"
#include "experiments/launch/output.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

enum child_state {
    CHILD_NEW,       /* not started */
    CHILD_RUNNING,   /* its pidfd tells its end */
    CHILD_LINGERING, /* it has ended, processes that it started have not */
    CHILD_GONE,      /* nothing of its group is left */
};

struct child {
    const char *kind; /* "rank" or "server"; constant text */
    unsigned index;
    enum child_state state;
    pid_t pid; /* and the number of its group */
    int pidfd; /* -1 unless RUNNING */
    int code;  /* exit code, or the signal that killed it; from LINGERING on */
    bool signaled;
    int64_t kill_at_ns; /* SIGKILL to the group then; INT64_MAX: no */
    bool killed;        /* that was done */
    unsigned restarts;  /* times that it was started again */
    bool to_restart;    /* once it is GONE */
    struct output outputs[2];
};

struct child_request {
    const char *kind;
    unsigned index;
    const char *file;       /* what to execute; looked up in PATH unless it has a '/' */
    char *const *argv;      /* NULL-terminated */
    char *const *variables; /* "NAME=value" to set, "NAME" to unset; NULL-terminated; borrowed */
    const char *prefix;     /* before each line of its output; NULL: it writes straight to ours */
    const sigset_t *mask;   /* signals that it has blocked */
    const struct keeper *keeper;
};

/* Fork and exec; returns once the program has been loaded, or STATUS_INVALID with the reason why it
 * could not be.  Its standard input is empty. */
enum status child_start(struct child *c, const struct child_request *request, struct error *err);

/* To the whole group, and SIGCONT behind it: what is stopped could not react. */
void child_signal(const struct child *c, int number);

/* Take the end of a RUNNING child: it is LINGERING then. */
void child_reap(struct child *c);

/* LINGERING: reap what came to us of its group; true when nothing is left (the caller makes it
 * GONE). */
bool child_group_is_empty(const struct child *c);

bool child_is_active(const struct child *c); /* RUNNING or LINGERING */
bool child_failed(const struct child *c);    /* exit code other than 0, or killed */

/* As the exit code of a shell: the code, or 128 + signal. */
int child_exit_code(const struct child *c);

/* "rank 2 (pid 77)"; "exit code 3" or "killed by signal 9 (SIGKILL)". */
void child_name(const struct child *c, char *text, size_t size);
void child_end_text(const struct child *c, char *text, size_t size);

#endif
