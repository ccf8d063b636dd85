/*
 * ps_fixture: a parameter-server job of real processes.  Every connection goes through a fault
 * proxy, so that a test can inject a fault into any process or link at any byte and check how the
 * other processes react.
 *
 * All jobs of a fixture compute the same: where a policy promises that nothing is lost, a rank's
 * final parameters must have the bits of ps_fixture_reference_hash.
 *
 * The table lists which process is killed (SIGKILL) and stopped (SIGSTOP) in which phase, and which
 * test does it; each entry covers both signals unless it names one.  faults, promises and replica
 * are test_ps_faults.c, test_ps_promises.c and test_ps_replica.c; test_ps_storm.c injects faults at
 * any byte.
 *
 *            join                       push, sum, pull            snapshot (--state-dir)
 *   worker   faults: losses             faults: losses             promises: wait
 *            promises: wait_in_join     promises: wait, shrink
 *              (killed)                 faults: short_stops (stopped)
 *   server   faults: losses             faults: losses             promises: restart
 *                                       promises: restart (killed, SIGTERM)
 *                                       faults: short_stops (stopped)
 *   primary  replica: in_join,          replica: one_is_lost,      replica: one_is_lost
 *              in_a_request (killed)      any_moment (killed)
 *   replica  replica: in_join,          replica: one_is_lost,      replica: one_is_lost
 *              no_replica                 any_moment (killed)
 */
#ifndef SPARRING_TESTS_INTEGRATION_PS_FIXTURE_H
#define SPARRING_TESTS_INTEGRATION_PS_FIXTURE_H

#include "tests/support/fault_proxy.h"
#include "tests/support/process.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PS_FIXTURE_RANKS_MAX     4u
#define PS_FIXTURE_SERVERS_MAX   4u
#define PS_FIXTURE_ARGUMENTS_MAX 72u

#define PS_FIXTURE_WAIT_MS 60000 /* longest wait for an expected event; longer counts as a hang */

/* Bytes of the gradients of a rank per round; the replies to them have the same size. */
#define PS_FIXTURE_ROUND_BYTES UINT64_C(51872)
#define PS_FIXTURE_ACKS_BYTES  UINT64_C(300) /* about; a replica's acknowledgements of a round */

/* With gradients in shared memory: least bytes per round; most bytes until the end of the first
 * round, and before the first chunk of a connection that replaces another.  Joins with one to three
 * connections took 2200 to 4180 bytes up, 810 to 1990 down. */
#define PS_FIXTURE_REFERENCES_BYTES UINT64_C(300)
#define PS_FIXTURE_JOIN_UP_BYTES    UINT64_C(4300)
#define PS_FIXTURE_JOIN_DOWN_BYTES  UINT64_C(2100)
#define PS_FIXTURE_REJOIN_BYTES     UINT64_C(700)

/* A proxied link between a worker and a server. */
struct ps_fixture_link {
    struct fault_proxy *proxy;
    atomic_bool is_frozen;
};

/* As a rank: the link between a server and its replica. */
#define PS_FIXTURE_REPLICA_LINK PS_FIXTURE_RANKS_MAX

struct ps_fixture {
    unsigned ranks, servers;
    const char *const *worker; /* more options of the workers, NULL-terminated; NULL: none */
    const char *const *server; /* of the servers */
    bool with_state;           /* each server has a --state-dir: ps_fixture_state_dir */
    const char *update;        /* --ps-update; NULL: server */
    bool by_reference;         /* gradients in shared memory: only references pass the proxies */
    const char *connections;   /* of a worker and a server; NULL: 1 */
    const char *steps;         /* NULL: PS_FIXTURE_STEPS */
    const char *timeout_ms;    /* NULL: 20000 */
    const char *before;        /* a line of sh before the servers, as "ulimit -f 8"; NULL: none */
    uint64_t seed;             /* of the proxies */
    bool replicas;             /* server k has one, which counts as server `servers` + k; one proxy
                                  stands before each, for the workers and for its primary */
    /* below: internal to the fixture */
    const char *run_dir, *store;
    uint16_t ports[PS_FIXTURE_SERVERS_MAX];
    struct process server_process[PS_FIXTURE_SERVERS_MAX];
    struct process worker_process[PS_FIXTURE_RANKS_MAX];
    bool server_runs[PS_FIXTURE_SERVERS_MAX], worker_runs[PS_FIXTURE_RANKS_MAX];
    bool worker_is_new[PS_FIXTURE_RANKS_MAX]; /* started since ps_fixture_mark_fault */
    struct ps_fixture_link links[PS_FIXTURE_RANKS_MAX + 1]
                                [PS_FIXTURE_SERVERS_MAX]; /* and of PS_FIXTURE_REPLICA_LINK */
    int64_t fault_ns;                                     /* of ps_fixture_mark_fault */
    atomic_int_fast64_t recovered_ns; /* when a rank had received two more rounds; 0: not yet */
    double detect_ms;                 /* first failure after ps_fixture_mark_fault; 0: none */
    double last_ms;                   /* last failure */
    long records_bytes_before[PS_FIXTURE_SERVERS_MAX]; /* at ps_fixture_mark_fault */
};

#define PS_FIXTURE_STEPS "40"

/* Start the servers, and a proxy for each pair of a worker and a server. */
void ps_fixture_open(struct ps_fixture *r);

/* Start or restart a server (on its port), start one worker (again: as a replacement of the process
 * before), start all workers. */
void ps_fixture_start_server(struct ps_fixture *r, unsigned server);
void ps_fixture_start_worker(struct ps_fixture *r, unsigned rank);
void ps_fixture_start_workers(struct ps_fixture *r);

/* What a server, or a replica, has printed so far. */
const char *ps_fixture_server_output(const struct ps_fixture *r, unsigned server);

/* A server's --state-dir; valid until the next call. */
const char *ps_fixture_state_dir(const struct ps_fixture *r, unsigned server);

/* Send a signal; SIGKILL waits for the end of the process, SIGSTOP until it has stopped. */
void ps_fixture_signal_server(struct ps_fixture *r, unsigned server, int signal_number);
void ps_fixture_signal_worker(struct ps_fixture *r, unsigned rank, int signal_number);

/* Wait until a server that got SIGTERM has exited with 0. */
void ps_fixture_await_server_end(struct ps_fixture *r, unsigned server);

/* Wait until the bytes of `rounds` rounds (fractions count) have passed in that direction.  They
 * count from the start, where the initial values are one round down; by reference, from the end of
 * the first round. */
void ps_fixture_await_bytes(struct ps_fixture *r, unsigned rank, unsigned server,
                            enum fault_way way, double rounds);

/* Hold the link in both directions at that byte; wait until the byte is reached; release the
 * link. */
void ps_fixture_freeze_at(struct ps_fixture *r, unsigned rank, unsigned server, enum fault_way way,
                          double rounds);
void ps_fixture_await_freeze(struct ps_fixture *r, unsigned rank, unsigned server);
void ps_fixture_release(struct ps_fixture *r, unsigned rank, unsigned server);

/* Start the workers, and stop (SIGSTOP) a server with a --state-dir, or a replica, while it writes
 * a snapshot: the snapshot has begun and has not ended. */
void ps_fixture_stop_in_snapshot(struct ps_fixture *r, unsigned server);

/* Record now as the time of the fault.  `rank` must not be its victim: its link shows when rounds
 * continue. */
void ps_fixture_mark_fault(struct ps_fixture *r, unsigned rank);

/* Wait for a worker; returns its exit code, and fails the test when it hangs. */
int ps_fixture_wait_worker(struct ps_fixture *r, unsigned rank);

/* Every worker except `but` fails with an error that contains `text`. */
void ps_fixture_expect_failure(struct ps_fixture *r, unsigned but, const char *text);

/* Every worker except `but` succeeds, with the parameters of ps_fixture_reference_hash if `exact`.
 */
void ps_fixture_expect_success(struct ps_fixture *r, unsigned but, bool exact);

/* Wait until rounds continue after ps_fixture_mark_fault. */
void ps_fixture_await_recovery(struct ps_fixture *r);

/*
 * One line of JSON on stdout and in $SPARRING_FAULT_LOG: the fault, and how long after
 * ps_fixture_mark_fault it was detected (a process ended with an error, or connected to a server
 * again; otherwise the detect_ms of the servers' records) and overcome (two more rounds); null
 * where it was not.
 */
void ps_fixture_report_fault(const struct ps_fixture *r, const char *fault);

/* Kill the processes that still run. */
void ps_fixture_close(struct ps_fixture *r);

#define PS_FIXTURE_NO_RANK 99u

/* Hash of the final parameters of a job of `ranks` ranks without faults.  Runs the job at the first
 * call. */
const char *ps_fixture_reference_hash(unsigned ranks, const char *update);

/* Compute the hashes of 2 and 3 ranks in the process that forks the tests (unchecked fixture). */
void ps_fixture_compute_references(void);

#endif
