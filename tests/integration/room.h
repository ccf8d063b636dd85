/*
 * room: a parameter-server job of real processes whose every connection goes through a proxy, so
 * that a test can strike any process or link at any byte, and see what becomes of the others.
 *
 * All jobs of a room compute the same: where a policy promises that nothing is lost, a rank's
 * parameters must end with the bits of room_reference.
 *
 * Who is killed (kill -9) and stopped (SIGSTOP), in which phase, and where it is tested; each of
 * these is both, but where it says one of them.  faults, promises and replica are test_ps_faults.c,
 * test_ps_promises.c and test_ps_replica.c; the storms (test_ps_storm.c) strike at any byte.
 *
 *            join                       push, sum, pull            snapshot (--state-dir)
 *   worker   faults: losses             faults: losses             promises: wait
 *            promises: wait_in_join     promises: wait, shrink
 *              (killed)                 faults: naps (stopped)
 *   server   faults: losses             faults: losses             promises: restart
 *                                       promises: restart (killed, SIGTERM)
 *                                       faults: naps (stopped)
 *   primary  replica: in_join,          replica: one_is_lost,      replica: one_is_lost
 *              in_a_request (killed)      any_moment (killed)
 *   replica  replica: in_join,          replica: one_is_lost,      replica: one_is_lost
 *              no_replica                 any_moment (killed)
 */
#ifndef SPARRING_TESTS_INTEGRATION_ROOM_H
#define SPARRING_TESTS_INTEGRATION_ROOM_H

#include "tests/support/fault_proxy.h"
#include "tests/support/process.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ROOM_RANKS_MAX   4u
#define ROOM_SERVERS_MAX 4u
#define ROOM_WORDS_MAX   72u

#define ROOM_WAIT_MS 60000 /* for what must come; a hang is longer */

/* Bytes of the gradients of a rank per round, and so of the answers to them. */
#define ROOM_ROUND_BYTES UINT64_C(51872)
#define ROOM_ACKS_BYTES  UINT64_C(300) /* about; of a replica, to the records of a round */

/* Where the gradients lie in shared memory: at least so many per round; and at most so many until
 * the first round is over, and before the first chunk of a connection that takes another's place.
 * Joins with one to three connections took 2200 to 4180 bytes up, 810 to 1990 down. */
#define ROOM_REFERENCES_BYTES UINT64_C(300)
#define ROOM_JOIN_UP_BYTES    UINT64_C(4300)
#define ROOM_JOIN_DOWN_BYTES  UINT64_C(2100)
#define ROOM_REJOIN_BYTES     UINT64_C(700)

/* Where the bytes between a worker and a server stop. */
struct room_link {
    struct fault_proxy *proxy;
    atomic_bool is_frozen;
};

#define ROOM_CHAIN ROOM_RANKS_MAX /* as a rank: the link between a server and its replica */

struct room {
    unsigned ranks, servers;
    const char *const *worker; /* more options of the workers, NULL-terminated; NULL: none */
    const char *const *server; /* of the servers */
    bool with_state;           /* each server has a --state-dir: room_state */
    const char *update;        /* --ps-update; NULL: server */
    bool by_reference;         /* gradients in shared memory: only references pass the proxies */
    const char *connections;   /* of a worker and a server; NULL: 1 */
    const char *steps;         /* NULL: ROOM_STEPS */
    const char *timeout_ms;    /* NULL: 20000 */
    const char *before;        /* a line of sh before the servers, as "ulimit -f 8"; NULL: none */
    uint64_t seed;             /* of the proxies */
    bool replicas;             /* server k has one, which counts as server `servers` + k; one proxy
                                  stands before each, for the workers and for its primary */
    /* below: the room's own */
    const char *run_dir, *store;
    uint16_t ports[ROOM_SERVERS_MAX];
    struct process server_process[ROOM_SERVERS_MAX];
    struct process worker_process[ROOM_RANKS_MAX];
    bool server_runs[ROOM_SERVERS_MAX], worker_runs[ROOM_RANKS_MAX];
    bool worker_is_new[ROOM_RANKS_MAX];                           /* started since room_mark */
    struct room_link links[ROOM_RANKS_MAX + 1][ROOM_SERVERS_MAX]; /* and of ROOM_CHAIN */
    int64_t struck_ns;                                            /* of room_mark */
    atomic_int_fast64_t whole_ns;  /* a rank has got two more rounds since; 0: not yet */
    double detect_ms;              /* the first failure that was seen, after room_mark; 0: none */
    double last_ms;                /* the last one */
    long marked[ROOM_SERVERS_MAX]; /* bytes of a server's records before room_mark */
};

#define ROOM_STEPS "40"

/* Start the servers, and a proxy for each pair. */
void room_open(struct room *r);

/* A server (again, on its port), one worker (again: in the place of the one before), all workers.
 */
void room_start_server(struct room *r, unsigned server);
void room_start_worker(struct room *r, unsigned rank);
void room_start_workers(struct room *r);

/* What a server, or a replica, has printed so far. */
const char *room_server_output(const struct room *r, unsigned server);

/* A server's --state-dir; valid until the next call. */
const char *room_state(const struct room *r, unsigned server);

/* Signals; with SIGKILL the process is waited for, with SIGSTOP its standing still. */
void room_hit_server(struct room *r, unsigned server, int number);
void room_hit_worker(struct room *r, unsigned rank, int number);

/* Wait for the orderly end of a server that was told to stop. */
void room_end_server(struct room *r, unsigned server);

/* Wait until that many rounds' bytes (parts of a round count) have gone that way between the two,
 * counted from the start, where the initial values are one round down, or, by reference, behind the
 * first round. */
void room_await(struct room *r, unsigned rank, unsigned server, enum fault_way way, double rounds);

/* Stop the bytes between the two there, both ways, wait until it has come to that, and let them go
 * again. */
void room_freeze_at(struct room *r, unsigned rank, unsigned server, enum fault_way way,
                    double rounds);
void room_await_freeze(struct room *r, unsigned rank, unsigned server);
void room_release(struct room *r, unsigned rank, unsigned server);

/* Start the workers, and stop (SIGSTOP) a server with a --state-dir, or a replica, in the middle of
 * a snapshot: one has begun, and has not ended. */
void room_stop_in_snapshot(struct room *r, unsigned server);

/* Now is when it is struck; `rank`, which is not, tells when rounds go on. */
void room_mark(struct room *r, unsigned rank);

/* Wait for a worker; returns its exit code, and fails the test when it hangs. */
int room_wait_worker(struct room *r, unsigned rank);

/* Every worker but `but` ends with a failure that says `text`. */
void room_expect_failure(struct room *r, unsigned but, const char *text);

/* Every worker but `but` ends well, with the parameters of room_reference when `exact`. */
void room_expect_success(struct room *r, unsigned but, bool exact);

/* Wait until rounds go on after room_mark. */
void room_await_recovery(struct room *r);

/*
 * One line of JSON on stdout and in $SPARRING_FAULT_LOG: the fault, and how long after room_mark it
 * was detected (the first process ended with an error, or called a server again; else what a server
 * has recorded of it by now) and overcome (two rounds more); null where it was not.
 */
void room_report(const struct room *r, const char *fault);

/* Stop what still runs. */
void room_close(struct room *r);

#define ROOM_NOBODY 99u

/* The hash of the parameters that `ranks` ranks end with when nothing happens.  Runs the job the
 * first time. */
const char *room_reference(unsigned ranks, const char *update);

/* Those of 2 and 3 ranks, in the process that forks the tests: an unchecked fixture. */
void room_find_references(void);

#endif
