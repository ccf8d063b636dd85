/*
 * job: runs real jobs (sparring launch, sparring-server, sparring-worker) and reads what they
 * leave.
 */
#ifndef SPARRING_TESTS_INTEGRATION_JOB_H
#define SPARRING_TESTS_INTEGRATION_JOB_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_TIMEOUT_MS 100000

struct job {
    const char *backend; /* of allreduce; NULL: auto */
    unsigned ranks;
    unsigned servers;           /* 0: none */
    const char *const *wrapper; /* arguments before the worker's program; NULL: none */
    const char *const
        *worker; /* options of sparring-worker, NULL-terminated; see ARGS in process.h */
};

/* Run it through `sparring launch --standalone`, expect exit code `wanted`; returns the run
 * directory. */
const char *job_run(const struct job *job, int wanted);

/* Device of the tests' jobs: $SPARRING_TEST_DEVICE, default "cpu". */
const char *job_device(void);

/* A delay schedule that makes each of so many ranks run at most one step per millisecond: a job
 * that must outlast a test's checks need not keep all cores busy. */
const char *job_pace(unsigned ranks);

/* Output of the launcher in the last job_run. */
const char *job_output(void);

/* "loss" of every step of a rank into losses[0..max); returns the number of steps. */
size_t job_losses(const char *run_dir, unsigned rank, double *losses, size_t max);

/* A member of the first record of that kind in rank<r>.jsonl. */
int64_t job_record_int(const char *run_dir, unsigned rank, const char *kind, const char *member);

/* The same of a text; "" when there is none.  Valid until the next call. */
const char *job_record_text(const char *run_dir, unsigned rank, const char *kind,
                            const char *member);

/* The first record of that kind in server<k>.jsonl; the caller decrefs. */
json_t *job_server_record(const char *run_dir, unsigned server, const char *kind);

/* The same of the last record of that kind, -1 when there is none yet. */
int64_t job_newest_int(const char *run_dir, unsigned rank, const char *kind, const char *member);

/* And of a server's records. */
int64_t job_server_int(const char *run_dir, unsigned server, const char *kind, const char *member);

/* Wait until a rank's records hold a step from `step` on; fails the test after a minute. */
void job_await_step(const char *run_dir, unsigned rank, int64_t step);

/* summary.json; the caller decrefs. */
json_t *job_summary(const char *run_dir);

/* Largest |a - b| over all elements of two safetensors files with the same tensors; the test fails
 * when they differ in names or shapes. */
double job_checkpoint_distance(const char *a, const char *b);

/* True when two files hold the same tensor bytes (metadata may differ). */
int job_same_tensors(const char *a, const char *b);

#endif
