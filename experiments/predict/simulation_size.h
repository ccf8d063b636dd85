/*
 * simulation_size: how much of a job is simulated, so that it takes seconds.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_SIMULATION_SIZE_H
#define SPARRING_EXPERIMENTS_PREDICT_SIMULATION_SIZE_H

#include "common/base/error.h"
#include "common/shard_map/shard_map.h"
#include "experiments/predict/cost_model.h"

#include <stdbool.h>
#include <stdint.h>

#define SIMULATION_STEPS 24 /* of each rank */

/* What is simulated of a job: a rank may stand for several, which do the same at the same time, and
 * so may a server. */
struct simulation_size {
    unsigned ranks, servers;
    double server_size; /* servers that one stands for */
    double partition_bytes;
    double element_bytes; /* that an element of the map stands for: its partitions are limited */
};

/*
 * The size for a job whose gradients have so many bytes: the job's own, fewer ranks on hosts
 * without servers, or, only if no closed form covers the job (`is_required`), fewer ranks and
 * servers and larger partitions.  False: too large for all of these.
 */
bool simulation_size_of(const struct cost_job *job, double bytes, bool is_required,
                        struct simulation_size *ret);

/* The map for simulation_run of gradients that have so many bytes.  weights: of the servers, NULL:
 * all the same.  The caller releases *ret. */
enum status simulation_make_map(const struct simulation_size *size, double bytes,
                                const uint32_t *weights, struct shard_map *ret, struct error *err);

#endif
