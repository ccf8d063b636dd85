/*
 * bench_ps: what the sources of `sparring bench ps` share.
 *
 * One measurement starts K real sparring-server processes and N worker processes (this program
 * again) and lets every worker push and pull `bytes` per iteration through the same code that
 * training uses; the servers sum, the mean gradient comes back.  An iteration lasts from the first
 * worker's start to the last worker's end on the monotonic clock, which all processes of a host
 * share.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_PS_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_PS_H

#include "common/base/error.h"

#include <stddef.h>
#include <stdint.h>

/* argv[1] of a process that bench ps starts as a worker. */
#define BENCH_PS_WORKER "--as-worker"

struct bench_ps_config {
    unsigned workers, servers;
    size_t bytes; /* per worker, a multiple of 4 */
    size_t partition_bytes;
    size_t iterations, warmup;
    int64_t timeout_ms;
};

/* seconds[0..iterations): one measurement with its own processes. */
enum status bench_ps_measure(const struct bench_ps_config *config, double *seconds,
                             struct error *err);

/* seconds[0..iterations): `bytes` to another process over one TCP connection on the loopback and
 * back again, piece by piece as a parameter server would, without gRPC and without a sum. */
enum status bench_ps_raw(const struct bench_ps_config *config, double *seconds, struct error *err);

/* The body of a worker process: words "--as-worker RANK WORLD SERVERS BYTES PARTITION ITERATIONS
 * WARMUP TIMEOUT"; writes one pair of int64_t (start, end, in ns) per iteration to stdout. */
int bench_ps_worker(int argc, char **argv);

#endif
