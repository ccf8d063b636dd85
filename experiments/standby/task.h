/*
 * task: one call of a client to the daemon, and the process that it asked for.  Internal to
 * standby.
 *
 * Threads: the call's handlers fill `mailbox`, the daemon's only loop does the rest.
 */
#ifndef SPARRING_EXPERIMENTS_STANDBY_TASK_H
#define SPARRING_EXPERIMENTS_STANDBY_TASK_H

#include "common/rpc/rpc.h"
#include "common/wire/wire_standby.h"
#include "experiments/launch/child.h"

#include <limits.h>
#include <time.h>

/* What all tasks share; constant while the daemon runs. */
struct task_settings {
    const char *programs;     /* folder */
    struct text_list folders; /* that paths may lead into; resolved */
    struct text_list keys;    /* variables of the daemon's own certificate and token */
    sigset_t mask;            /* of the children */
    struct orphan_reaper orphan_reaper;
};

enum task_state {
    TASK_NEW,   /* without a request */
    TASK_HOLDS, /* the host, without a process */
    TASK_RUNS,
    TASK_SENDS, /* the process is gone, its files are under way */
    TASK_OVER,  /* its call has been ended */
};

/* What the handlers have for the loop; under the daemon's lock. */
struct task_mailbox {
    struct standby_request request;
    bool has_request; /* a first one, which the loop takes */
    bool stop;
    bool is_left;   /* the client says no more */
    bool is_closed; /* the call is no more */
    int64_t heard_ns;
};

struct file_sender;

struct task {
    struct rpc_call *call; /* a reference */
    struct standby *standby;
    unsigned number;
    struct task_mailbox mailbox;
    enum task_state state;
    char holder[128];
    time_t since;
    struct child child; /* if it RUNS */
    bool is_stopped;    /* it got SIGTERM ... */
    bool is_killed;     /* ... or SIGKILL */
    char folder[4096];  /* its working folder, made for it; "": none */
    int code;
    struct file_sender *sender; /* owned; if it SENDS */
    int64_t beat_ns;            /* when the next sign of life is due */
};

/* Start what was asked for; it was checked. */
enum status task_start(struct task *t, const struct task_settings *s,
                       const struct standby_request *request, struct error *err);

/* Send output and files as far as the client takes them, notice the process's end. */
void task_step(struct task *t, const struct task_settings *s);

/* Ask it to stop, or kill it and all that it has started. */
void task_stop(struct task *t);
void task_kill(struct task *t);

/* To the client; a call that has ended drops it. */
void task_send(struct task *t, const struct standby_reply *reply);

/* End the call with a failure. */
void task_refuse(struct task *t, const struct error *why);

/* No process, no folder is left.  The caller has seen is_closed. */
void task_release(struct task *t);

/* ---- task_files.c */

/* Of all regular files below `folder`, which is borrowed. */
enum status file_sender_open(const char *folder, struct file_sender **ret, struct error *err);

/* The next piece; kind 0: there are no more.  `data` is the sender's, until the next call. */
enum status file_sender_next(struct file_sender *f, struct standby_reply *ret, struct error *err);

void file_sender_close(struct file_sender *f); /* NULL is allowed */

#endif
