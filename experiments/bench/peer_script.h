/*
 * peer_script: where the Python programs are that run PyTorch beside ours.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_PEER_SCRIPT_H
#define SPARRING_EXPERIMENTS_BENCH_PEER_SCRIPT_H

#include "common/base/error.h"

#include <stddef.h>

/* `given`, unless it is empty; else `name` in the installation's share folder, else in the source
 * tree.  STATUS_NOT_FOUND with both places when neither has it. */
enum status peer_script_find(const char *given, const char *name, char *ret_path, size_t size,
                             struct error *err);

#endif
