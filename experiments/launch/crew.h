/*
 * crew: everything that one launcher started, watched through one epoll: ends in the order in which
 * they happen, signals, output.
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_CREW_H
#define SPARRING_EXPERIMENTS_LAUNCH_CREW_H

#include "experiments/launch/child.h"
#include "experiments/subprocess/mpirun.h"

struct crew {
    struct child *children; /* owned; the servers first */
    size_t count;
    size_t servers;
    struct keeper keeper;
    int epoll_fd;
    int stop_fd;    /* signalfd: SIGTERM, SIGINT, SIGHUP, SIGQUIT */
    int orphans_fd; /* signalfd: SIGCHLD */
    int wake_fd;    /* inotify of the caller, only read empty; -1: none; borrowed */
    sigset_t mask;  /* as it was before; of the children */
    int64_t grace_ms;
    int64_t deadline_ns;        /* of the job */
    int64_t patience_ns;        /* until then a reader of our output may stall us */
    int stop_signal;            /* the first that asked us to stop; 0: none */
    struct mpirun_watch mpirun; /* pid 0: it is not looked at */
    bool tolerant;              /* the others go on when a rank is lost */
    unsigned restarts_left;     /* of ranks, when tolerant, and of servers, when durable */
    size_t pairs; /* of servers: i and pairs + i, of which one may be lost; 0: all are needed */
    bool durable; /* a server that is started again knows its job */
    /* Starts children[place] again (crew_start); called from crew_step. */
    enum status (*restart)(void *user, size_t place, struct error *err);
    void *user;
    size_t lost;                      /* ranks that were not started again, so far ... */
    const struct child *first_lost;   /* ... and the first of them; NULL: none */
    size_t ended_well;                /* ranks */
    bool timed_out;                   /* deadline_ns has passed */
    bool stopping;                    /* the ranks have been told to stop */
    bool servers_may_end;             /* the ranks are gone: a server that ends does so in order */
    bool closing;                     /* crew_close: ends say nothing any more */
    const struct child *suspect;      /* failed first, as far as is known; NULL: none */
    int64_t verdict_at_ns;            /* when the suspect is declared first_failed */
    const struct child *first_failed; /* NULL: none */
};

/* Blocks the signals and takes them over; all of it until crew_close. */
enum status crew_open(struct crew *c, size_t servers, size_t ranks, int64_t grace_ms,
                      int64_t timeout_ms, struct error *err);

/* Ask all to stop, wait, kill, and release; safe on a half-opened crew. */
void crew_close(struct crew *c);

/* Start children[place], which is new or GONE; request->mask and ->keeper are filled in here. */
enum status crew_start(struct crew *c, size_t place, struct child_request *request,
                       struct error *err);

/* Have crew_step return when inotify `fd` has something to tell. */
enum status crew_watch(struct crew *c, int fd, struct error *err);

/* Wait for something to happen, until deadline_ns at most, and handle it: copy output, forward
 * signals, note ends, stop the ranks when one child failed, kill what overstays, start again what
 * was lost. */
enum status crew_step(struct crew *c, int64_t deadline_ns, struct error *err);

/* Tell children[first..end) to stop; SIGKILL follows after the grace time. */
void crew_stop(struct crew *c, size_t first, size_t end, int number);

/* Wait until children[first..end) are all gone. */
enum status crew_wait(struct crew *c, size_t first, size_t end, struct error *err);

#endif
