/*
 * child: one rank or server: a process in its own session and process group, so that a signal
 * reaches every process that it starts.  It gets SIGKILL when this process dies.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_CHILD_H
#define SPARRING_EXPERIMENTS_LAUNCH_CHILD_H

#include "common/base/error.h"
#include "experiments/cluster/engine.h"
#include "experiments/launch/orphan_reaper.h"
#include "experiments/launch/output.h"
#include "experiments/network/network.h"

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

enum child_state {
    CHILD_NEW,          /* not started */
    CHILD_RUNNING,      /* its pidfd becomes readable when it ends */
    CHILD_LEADER_ENDED, /* it has ended, processes that it started have not */
    CHILD_GONE,         /* no process of its group is left */
};

struct child {
    const char *kind; /* "rank" or "server"; constant text */
    unsigned index;
    enum child_state state;
    pid_t pid; /* also the number of its group */
    int pidfd; /* -1 unless RUNNING */
    int code;  /* exit code, or the signal that killed it; from LEADER_ENDED on */
    bool signaled;
    int64_t kill_at_ns; /* when the group gets SIGKILL; INT64_MAX: never */
    bool killed;        /* SIGKILL was sent */
    unsigned restarts;  /* times that it was started again */
    bool to_restart;    /* once it is GONE and restart_at_ns has come */
    int64_t restart_at_ns;
    bool paused;                 /* SIGSTOP was sent by a fault schedule, SIGCONT was not ... */
    bool to_resume;              /* ... and is to follow */
    const struct engine *engine; /* of the step that it is; NULL: none */
    int control_fd;              /* its standard input, if it reads names of signals; -1: none */
    struct output outputs[2];
};

struct child_request {
    const char *kind;
    unsigned index;
    const char *file;       /* what to execute; looked up in PATH unless it has a '/' */
    char *const *argv;      /* NULL-terminated */
    char *const *variables; /* "NAME=value" to set, "NAME" to unset; NULL-terminated; borrowed */
    const char *prefix; /* before each line of its output; NULL: it inherits our stdout, stderr */
    const cpu_set_t *processors;   /* that it may use; NULL: those of this process */
    const sigset_t *mask;          /* its signal mask */
    unsigned host;                 /* of the emulated network, if there is one */
    const struct network *network; /* NULL: none */
    const struct engine *engine;   /* it starts a step of this one; NULL: none */
    const struct orphan_reaper *orphan_reaper;
};

/* Fork and exec; returns once the program is loaded, or STATUS_INVALID with the reason of the
 * failure.  The child's standard input is empty, or for names of signals (engine.h). */
enum status child_start(struct child *c, const struct child_request *request, struct error *err);

/* Send `number` to the whole group, after SIGCONT when the child itself is stopped, so that it can
 * react; a stopped process below a running child is not continued.  The tasks of a step get a
 * request to stop, or are killed. */
void child_signal(const struct child *c, int number);

bool child_is_stopped(const struct child *c); /* RUNNING, and stopped by a signal */

/* Reap a RUNNING child that has ended; its state becomes LEADER_ENDED. */
void child_reap(struct child *c);

/* In state LEADER_ENDED: reap orphans of its group; true when no process is left (the caller sets
 * the state GONE). */
bool child_group_is_empty(const struct child *c);

/* It is gone: close what belongs to it but its outputs. */
void child_close(struct child *c);

bool child_is_active(const struct child *c); /* RUNNING or LEADER_ENDED */

/* RUNNING, but in the kernel's exit: its files may be closed already. */
bool child_is_exiting(const struct child *c);
bool child_failed(const struct child *c); /* exit code other than 0, or killed */

/* As the exit code of a shell: the code, or 128 + signal. */
int child_exit_code(const struct child *c);

/* "rank 2 (pid 77)"; "exit code 3" or "killed by signal 9 (SIGKILL)". */
void child_name(const struct child *c, char *text, size_t size);
void child_end_text(const struct child *c, char *text, size_t size);

#endif
