/*
 * job: runs whole jobs (sparring launch, sparring-server, sparring-worker) and reads their records,
 * summaries and checkpoints.  For the tests of this folder; call it inside a Check test or fixture.
 * A missing file or a wrong exit code fails the test.
 */
#ifndef SPARRING_TESTS_INTEGRATION_JOB_H
#define SPARRING_TESTS_INTEGRATION_JOB_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_TIMEOUT_MS 100000

struct job {
    const char *backend; /* --backend of the launcher; NULL: auto */
    unsigned ranks;
    unsigned servers;           /* 0: none */
    const char *const *wrapper; /* arguments before the worker's program; NULL: none */
    const char *const
        *worker; /* options of sparring-worker, NULL-terminated; see ARGS in process.h */
};

/* Run the job through `sparring launch --standalone`, which must exit with `wanted`; returns the
 * run directory. */
const char *job_run(const struct job *job, int wanted);

/* Device of the jobs: $SPARRING_TEST_DEVICE, default "cpu". */
const char *job_device(void);

/* Path of a delay schedule that delays each of `ranks` ranks by 1 ms per step.  For jobs that must
 * outlast the checks of a test without using all cores. */
const char *job_pace(unsigned ranks);

/* The same, and the `count` ranks in `held` sleep for 15 s at a step, so that the job cannot end
 * before the test comes to kill them. */
const char *job_pace_and_hold(unsigned ranks, unsigned step, const unsigned *held, unsigned count);

/* Output of the launcher in the last job_run. */
const char *job_output(void);

/* "loss" of every step of a rank into losses[0..max); returns the number of steps. */
size_t job_losses(const char *run_dir, unsigned rank, double *losses, size_t max);

/* A member of the first record of that kind in rank<r>.jsonl; -1 if there is none. */
int64_t job_record_int(const char *run_dir, unsigned rank, const char *kind, const char *member);

/* The same for a string member; "" if there is none.  Valid until the next call. */
const char *job_record_text(const char *run_dir, unsigned rank, const char *kind,
                            const char *member);

/* The first record of that kind in server<k>.jsonl; the caller decrefs. */
json_t *job_server_record(const char *run_dir, unsigned server, const char *kind);

/* An integer member of the last record of that kind in rank<r>.jsonl; -1 if there is none yet. */
int64_t job_newest_int(const char *run_dir, unsigned rank, const char *kind, const char *member);

/* The same in server<k>.jsonl. */
int64_t job_server_int(const char *run_dir, unsigned server, const char *kind, const char *member);

/* Wait until a rank has recorded step `step` or a later one; fails the test after a minute. */
void job_await_step(const char *run_dir, unsigned rank, int64_t step);

/* Wait until a rank's records have ended; fails the test after a minute. */
void job_await_end(const char *run_dir, unsigned rank);

/* summary.json; the caller decrefs. */
json_t *job_summary(const char *run_dir);

/* Largest |a - b| over all elements of two safetensors files; the test fails if their tensors
 * differ in name or shape. */
double job_checkpoint_distance(const char *a, const char *b);

/* True if both files hold the same tensor bytes (metadata may differ). */
int job_same_tensors(const char *a, const char *b);

#endif
