/*
 * experiment: what an experiment file says.
 *
 *   title: Built-in digits, ring against parameter server     # of the report
 *   nproc: 2            # ranks of each run
 *   repeats: 5          # runs of each mode
 *   deadline: 120       # seconds a run may take
 *   options:            # of sparring-worker, for all modes; seed is that of the first repeat
 *     model: mlp:784-128-10
 *   modes:
 *     - name: ring      # of its run directories
 *       label: ring all-reduce
 *       nproc: 2        # unless as above
 *       servers: 0      # parameter servers to start
 *       options: {sync: allreduce, backend: ring}
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_EXPERIMENT_H
#define SPARRING_EXPERIMENTS_COMPARE_EXPERIMENT_H

#include "common/base/error.h"
#include "common/option/option.h"

#include <stddef.h>
#include <stdint.h>

#define EXPERIMENT_MODES_MAX   16
#define EXPERIMENT_OPTIONS_MAX 64

struct experiment_option {
    char name[64];
    char value[512];
};

struct experiment_options {
    struct experiment_option items[EXPERIMENT_OPTIONS_MAX];
    size_t length;
};

struct experiment_mode {
    char name[32]; /* letters, digits, '-', '_' and '.' */
    char label[128];
    int64_t nproc;
    int64_t servers;
    struct experiment_options options;
    unsigned line; /* of its first key, for messages */
};

struct experiment {
    char name[256]; /* of the file, for messages */
    char title[256];
    int64_t nproc, repeats, deadline_seconds, seed;
    struct experiment_options options; /* without seed */
    struct experiment_mode modes[EXPERIMENT_MODES_MAX];
    size_t mode_count;
};

/* From a YAML file that was read; every failure is STATUS_CONFIG and names file and line.  The
 * struct is large: allocate it. */
enum status experiment_parse(const struct yaml_file *file, struct experiment *ret,
                             struct error *err);

/* Which mode runs at `place` (0 to modes - 1) of a repeat: each repeat begins one mode later, so no
 * mode always runs first, nor always behind the same other one. */
size_t experiment_order(size_t repeat, size_t place, size_t modes);

#endif
