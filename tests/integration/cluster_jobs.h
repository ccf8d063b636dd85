/*
 * cluster_jobs: what the tests of `--on slurm`, `--on ssh` and `--on standby` have in common.  They
 * run inside tests/support/cluster with four nodes, in a folder of their own, with our programs on
 * PATH.
 */
#ifndef SPARRING_TESTS_INTEGRATION_CLUSTER_JOBS_H
#define SPARRING_TESTS_INTEGRATION_CLUSTER_JOBS_H

#include "tests/support/process.h"

#include <stddef.h>

#define CLUSTER_MODEL                                                                              \
    "--model mlp:64-96-8 --data random:4096,64,8 --threads 1 --reduce reproducible"

/* Shell: exit code 0 when no process of a job is left; when a run of out/ trains. */
#define CLUSTER_NOTHING_LEFT                                                                       \
    "! cat /proc/[0-9]*/comm 2>/dev/null | grep -q 'sparring-\\|^srun$\\|^ssh$'"
/* Slurm lists no job; a failure of squeue says nothing. */
#define CLUSTER_NO_JOBS   "jobs=$(squeue --noheader) && [ -z \"$jobs\" ]"
#define CLUSTER_HAS_BEGUN "cat out/runs/*/rank0.jsonl 2>/dev/null | grep -q '\"step\"'"

void cluster_setup(void);
void cluster_teardown(void);

/* Wait until a line of shell has exit code 0; fails the test with `what` after a minute. */
void cluster_wait(const char *what, const char *condition);

/* A job of three ranks on hosts n3, n1, n4 and n2 leaves the same parameters as on this host:
 * all-reduce, and servers that are dedicated, colocated and mixed.  `allocation`: a word of shell
 * before it, or ""; `saved`: where a rank's file "there" is found. */
#define CLUSTER_ARCHITECTURES 4
void cluster_check_same_values(int architecture, const char *allocation, const char *on,
                               const char *saved);

/* Start a job of three ranks and a server, whose launcher's number is in the file pid and whose
 * records are in run/.  It does not end by itself. */
void cluster_start_endless(struct process *job, const char *on);

/* The ranks and the server of run/ were asked to stop, and ended in order. */
void cluster_check_cancelled(unsigned ranks);

/* e.yaml: two blocks of ring and ps, two ranks each, whose steps take a millisecond and more. */
void cluster_write_experiment(int steps);

/* Of out/report.json. */
size_t cluster_count_good_runs(void);

/* Write e.yaml, and run it by `compare --on`: no run fails. */
void cluster_check_compare(const char *on);

/* Both modes of each block of out/ used the same hosts, in the same order. */
void cluster_check_hosts_of_blocks(void);

#endif
