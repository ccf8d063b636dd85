/*
 * simulation: steps of a job with servers, message by message, for what closed forms leave out:
 * links that carry pushes and replies at once, flows that are not equally fast, ranks that are not
 * in step, stragglers and staleness.
 *
 * A message flows like a fluid.  At each moment the flows share the links by weighted max-min
 * fairness: a flow's weight is the window of its TCP connection, drawn for each step of its rank
 * evenly between 2/3 and 4/3 of the mean, because TCP halves its window at a loss.  Pushes to one
 * server are equally fast where no packet is lost.  A flow is not faster than its window allows
 * when it has a link for itself, nor than software.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_SIMULATION_H
#define SPARRING_EXPERIMENTS_PREDICT_SIMULATION_H

#include "common/base/error.h"
#include "common/shard_map/shard_map.h"
#include "experiments/predict/cost_model.h"
#include "experiments/predict/simulation_size.h"

#include <stdint.h>

/*
 * The mean over the steps of all ranks, as METRICS.md has it.  `map` assigns the partitions of the
 * gradients to the simulated servers.  If the job is colocated, as many of them as there are ranks
 * run beside these, and what is left on hosts of its own.  The same seed gives the same step.
 * STATUS_NO_MEMORY only.
 */
enum status simulation_run(const struct cost_inputs *in, const struct shard_map *map,
                           const struct simulation_size *size, uint64_t seed, double *ret_step_s,
                           struct error *err);

#endif
