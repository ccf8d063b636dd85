/*
 * node_list: parses Slurm's two compressed texts without scontrol.
 * Host lists: "gnode[08-10,20],login" (see launch_env_first_host); task counts: "2(x2),1".
 */
#ifndef SPARRING_COMMON_LAUNCH_ENV_NODE_LIST_H
#define SPARRING_COMMON_LAUNCH_ENV_NODE_LIST_H

#include "common/base/error.h"

/* Tasks on node `node` (from 0) of SLURM_STEP_TASKS_PER_NODE: "2(x2),1" has 2, 2 and 1.
 * STATUS_CONFIG when malformed or when the list has fewer nodes. */
enum status node_list_tasks(const char *text, unsigned node, unsigned *ret_tasks,
                            struct error *err);

#endif
