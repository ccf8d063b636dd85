/*
 * ps_fixture: a parameter-server job of real processes.  Every connection goes through a fault
 * proxy, so that a test can inject a fault into any process or link at any byte and check how the
 * other processes react.
 *
 * All jobs of a fixture run the same training: if a loss policy preserves all gradients, the final
 * parameters of a rank must have the bits of ps_fixture_reference_hash.
 *
 * The table lists which process is killed (SIGKILL) and stopped (SIGSTOP) in which phase, and which
 * test does it; an entry covers both signals unless it names one.  faults, policy and replica are
 * test_ps_faults.c, test_ps_loss_policy.c and test_ps_replica.c; test_ps_storm.c injects faults at
 * random bytes.
 *
 *            join                       push, sum, pull            snapshot (--state-dir)
 *   worker   faults: losses             faults: losses             policy: wait
 *            policy: wait_in_join       policy: wait, shrink
 *              (killed)                 faults: short_stops (stopped)
 *   server   faults: losses             faults: losses             policy: restart
 *                                       policy: restart (killed, SIGTERM)
 *                                       faults: short_stops (stopped)
 *   primary  replica: in_join,          replica: one_is_lost,      replica: one_is_lost
 *              in_a_request (killed)      at_any_byte (killed)
 *   replica  replica: in_join,          replica: one_is_lost,      replica: one_is_lost
 *              no_replica                 at_any_byte (killed)
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

#define PS_FIXTURE_WAIT_MS 60000 /* limit of each wait for an event; then it counts as a hang */

/* Bytes of the gradients of one rank per round; the replies have the same size. */
#define PS_FIXTURE_ROUND_BYTES UINT64_C(51872)
#define PS_FIXTURE_ACKS_BYTES  UINT64_C(300) /* about; acknowledgements of the replica per round */

/* A proxied link between a worker and a server. */
struct ps_fixture_link {
    struct fault_proxy *proxy;
    atomic_bool is_frozen;
    double freeze_at; /* rounds */
};

/* Used in place of a rank: the link between a server and its replica. */
#define PS_FIXTURE_REPLICA_LINK PS_FIXTURE_RANKS_MAX

struct ps_fixture {
    unsigned ranks, servers;
    const char *const *worker; /* extra options of the workers, NULL-terminated; NULL: none */
    const char *const *server; /* the same for the servers */
    bool with_state;           /* each server has a --state-dir: ps_fixture_state_dir */
    const char *update;        /* --ps-update; NULL: server */
    bool by_reference;         /* chunks in shared memory: no byte of a round passes the proxies */
    const char *connections;   /* --connections; NULL: 1 */
    const char *steps;         /* NULL: PS_FIXTURE_STEPS */
    const char *timeout_ms;    /* NULL: 20000 */
    const char *before;        /* sh command run before a server, as "ulimit -f 8"; NULL: none */
    uint64_t seed;             /* of the proxies */
    bool replicas;             /* server k has a replica with index `servers` + k; one proxy before
                                  it serves the workers and its primary */
    /* below: internal to the fixture */
    const char *run_dir, *store;
    uint16_t ports[PS_FIXTURE_SERVERS_MAX];
    struct process server_process[PS_FIXTURE_SERVERS_MAX];
    struct process worker_process[PS_FIXTURE_RANKS_MAX];
    bool server_runs[PS_FIXTURE_SERVERS_MAX], worker_runs[PS_FIXTURE_RANKS_MAX];
    bool worker_is_new[PS_FIXTURE_RANKS_MAX]; /* started since ps_fixture_mark_fault */
    struct ps_fixture_link links[PS_FIXTURE_RANKS_MAX + 1]
                                [PS_FIXTURE_SERVERS_MAX]; /* and of PS_FIXTURE_REPLICA_LINK */
    int64_t fault_ns;                                     /* time of ps_fixture_mark_fault */
    atomic_int_fast64_t recovered_ns; /* when a rank has received two more rounds; 0: not yet */
    unsigned recovery_rank;           /* by reference: that rank, and the steps it has made then */
    int64_t recovery_steps;
    double detect_ms; /* first failure after ps_fixture_mark_fault; 0: none */
    double last_ms;   /* last failure */
    long records_bytes_before[PS_FIXTURE_SERVERS_MAX]; /* at ps_fixture_mark_fault */
};

#define PS_FIXTURE_STEPS "40"

/* Of the job. */
unsigned ps_fixture_steps(const struct ps_fixture *f);

/* Start the servers, and a proxy for each pair of a worker and a server. */
void ps_fixture_open(struct ps_fixture *f);

/* Start or restart a server on its port; start a worker, or the replacement of a lost one; start
 * all workers. */
void ps_fixture_start_server(struct ps_fixture *f, unsigned server);
void ps_fixture_start_worker(struct ps_fixture *f, unsigned rank);
void ps_fixture_start_workers(struct ps_fixture *f);

/* Output of a server or replica so far. */
const char *ps_fixture_server_output(const struct ps_fixture *f, unsigned server);

/* A server's --state-dir; valid until the next call. */
const char *ps_fixture_state_dir(const struct ps_fixture *f, unsigned server);

/* Send a signal; after SIGKILL wait until the process has ended, after SIGSTOP until it has
 * stopped, or has ended before: by reference a job goes on while a test holds its links. */
void ps_fixture_signal_server(struct ps_fixture *f, unsigned server, int signal_number);
void ps_fixture_signal_worker(struct ps_fixture *f, unsigned rank, int signal_number);

/* Wait for a server after SIGTERM; its exit code must be 0. */
void ps_fixture_await_server_end(struct ps_fixture *f, unsigned server);

/* Wait until the bytes of `rounds` rounds (may be fractional) have passed in that direction.  The
 * count starts with the job, where the initial values are one round down; by reference: until the
 * rank has made so many steps. */
void ps_fixture_await_bytes(struct ps_fixture *f, unsigned rank, unsigned server,
                            enum fault_direction direction, double rounds);

/* Hold the link in both directions once that byte has passed; wait until it has; release the link.
 */
void ps_fixture_freeze_at(struct ps_fixture *f, unsigned rank, unsigned server,
                          enum fault_direction direction, double rounds);
void ps_fixture_await_freeze(struct ps_fixture *f, unsigned rank, unsigned server);
void ps_fixture_release(struct ps_fixture *f, unsigned rank, unsigned server);

/* Start the workers, and stop (SIGSTOP) a server or replica with a --state-dir after it has begun a
 * snapshot and before it has completed it. */
void ps_fixture_stop_in_snapshot(struct ps_fixture *f, unsigned server);

/* Take the current time as the time of the fault.  `rank` must not be the victim: recovery is
 * measured on its link. */
void ps_fixture_mark_fault(struct ps_fixture *f, unsigned rank);

/* Wait for a worker and return its exit code; a hang fails the test. */
int ps_fixture_wait_worker(struct ps_fixture *f, unsigned rank);

/* Every worker except rank `but` must fail with an error that contains `text`. */
void ps_fixture_expect_failure(struct ps_fixture *f, unsigned but, const char *text);

/* Every worker except rank `but` must succeed; if `exact`, with the parameters of
 * ps_fixture_reference_hash. */
void ps_fixture_expect_success(struct ps_fixture *f, unsigned but, bool exact);

/* Wait until rounds have continued after ps_fixture_mark_fault. */
void ps_fixture_await_recovery(struct ps_fixture *f);

/*
 * Write one line of JSON to stdout and to $SPARRING_FAULT_LOG: the fault, and the times from
 * ps_fixture_mark_fault to its detection (a process ended with an error or reconnected to a server;
 * otherwise detect_ms of the servers' records) and to recovery (two more rounds); null if absent.
 */
void ps_fixture_report_fault(const struct ps_fixture *f, const char *fault);

/* Kill the remaining processes and close the proxies. */
void ps_fixture_close(struct ps_fixture *f);

#define PS_FIXTURE_NO_RANK 99u

/* Hash of the final parameters of a job of `ranks` ranks without faults.  The first call runs the
 * job; the result is cached. */
const char *ps_fixture_reference_hash(unsigned ranks, const char *update);

/* Compute the hashes for 2 and 3 ranks.  An unchecked fixture: all forked tests share them. */
void ps_fixture_compute_references(void);

/* A test case whose tests share the hashes and have time for three waits. */
#define PS_FIXTURE_CASE(name)                                                                      \
    TEST_CASE(name, 3 * PS_FIXTURE_WAIT_MS / 1000.0),                                              \
        UNCHECKED_FIXTURE(ps_fixture_compute_references, NULL)

#endif
