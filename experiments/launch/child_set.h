/*
 * child_set: all children of one launcher, watched through one epoll: their ends in the order in
 * which they happen, signals, output.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_CHILD_SET_H
#define SPARRING_EXPERIMENTS_LAUNCH_CHILD_SET_H

#include "experiments/launch/child.h"
#include "experiments/subprocess/mpirun.h"

struct child_set {
    struct child *children; /* owned; `servers` servers, then the ranks (or mpirun) */
    size_t count;
    size_t servers;
    struct orphan_reaper orphan_reaper;
    int epoll_fd;
    int stop_fd;                   /* signalfd: SIGTERM, SIGINT, SIGHUP, SIGQUIT */
    int orphans_fd;                /* signalfd: SIGCHLD */
    int wake_fd;                   /* inotify of the caller, drained here; -1: none; borrowed */
    sigset_t mask;                 /* the mask before open; the children get it */
    const struct network *network; /* emulated; NULL: none; borrowed */
    int64_t grace_ms;
    int64_t deadline_ns;        /* of the job */
    int64_t output_deadline_ns; /* until then a slow reader of our output may block us */
    int stop_signal;            /* the first stop signal that we got; 0: none ... */
    int64_t stop_ns;            /* ... and when */
    struct mpirun_watch mpirun; /* pid 0: not watched */
    bool tolerates_rank_loss;   /* the others go on when a rank is lost */
    unsigned restarts_left;     /* of ranks, when tolerates_rank_loss; of servers, when durable */
    size_t replica_pairs;       /* server i and its replica replica_pairs + i, of which one may be
                                   lost; 0: no replicas, all servers are needed */
    bool durable;               /* a restarted server restores its job from its state folder */
    /* Starts children[index] again (child_set_start); called from child_set_step. */
    enum status (*restart)(void *user, size_t index, struct error *err);
    /* Called from child_set_step once event_ns has come, unless the job is being stopped; it
     * returns the next one (INT64_MAX: none).  NULL: no events. */
    enum status (*event)(void *user, int64_t *ret_next_ns, struct error *err);
    int64_t event_ns;
    void *user;
    size_t lost;                      /* lost ranks that were not started again ... */
    const struct child *first_lost;   /* ... and the first of them; NULL: none */
    size_t ended_well;                /* ranks with exit code 0 */
    bool timed_out;                   /* deadline_ns has passed */
    bool stopping;                    /* the ranks got a stop signal */
    bool servers_may_end;             /* the ranks are gone: the end of a server is no failure */
    bool closing;                     /* in child_set_close: ends are ignored */
    const struct child *suspect;      /* the first failure so far; NULL: none */
    bool suspect_after_stop;          /* it ended after stop_signal */
    int64_t blame_deadline_ns;        /* when the suspect becomes first_failed */
    int64_t blame_limit_ns;           /* until then a child that exits may delay that */
    const struct child *first_failed; /* NULL: none */
};

/* Block the stop signals, SIGCHLD and SIGPIPE until child_set_close, and read them from signalfds.
 */
enum status child_set_open(struct child_set *c, size_t servers, size_t ranks, int64_t grace_ms,
                           int64_t timeout_ms, struct error *err);

/* Stop all children (SIGTERM, after the grace time SIGKILL), wait and release; safe on a
 * half-opened child_set. */
void child_set_close(struct child_set *c);

/* Start children[index], which is new or GONE; request->mask, ->network and ->orphan_reaper
 * are filled in here. */
enum status child_set_start(struct child_set *c, size_t index, struct child_request *request,
                            struct error *err);

/* Make child_set_step return when inotify `fd` is readable. */
enum status child_set_watch_fd(struct child_set *c, int fd, struct error *err);

/* Wait for an event, at most until deadline_ns, and handle it: copy output, forward signals, handle
 * ends, stop the ranks when one child failed, kill children past their grace time, restart lost
 * ones. */
enum status child_set_step(struct child_set *c, int64_t deadline_ns, struct error *err);

/* Send signal `number` to children[first..end); SIGKILL follows after the grace time. */
void child_set_stop(struct child_set *c, size_t first, size_t end, int number);

/* Wait until children[first..end) are all gone. */
enum status child_set_wait(struct child_set *c, size_t first, size_t end, struct error *err);

#endif
