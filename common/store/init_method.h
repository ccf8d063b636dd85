/*
 * init_method: the store's location, from a URL with PyTorch's schemes: "env://" (MASTER_ADDR and
 * MASTER_PORT of the launcher), "tcp://host:port" and "file:///path", and "unix:///path" for a
 * store that rank 0 serves on a Unix socket to the ranks of its host.  Pure, except that it checks
 * the folder of a file.
 */
#ifndef SPARRING_COMMON_STORE_INIT_METHOD_H
#define SPARRING_COMMON_STORE_INIT_METHOD_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/launch_env/launch_env.h"

#include <stdbool.h>

struct init_method {
    bool is_file;
    char path[4096];          /* of the file */
    struct endpoint endpoint; /* of rank 0, unless is_file */
    char origin[96];          /* its source: "--init-method", "SLURM_STEP_NODELIST and default" */
};

/* STATUS_CONFIG: malformed, with the text and the problem; STATUS_NOT_FOUND: no such folder. */
enum status init_method_parse(const char *text, const struct launch_env *launch,
                              struct init_method *ret, struct error *err);

#endif
