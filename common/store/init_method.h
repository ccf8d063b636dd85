/*
 * init_method: where the store is, from a URL with PyTorch's schemes: "env://" (MASTER_ADDR and
 * MASTER_PORT of the launcher), "tcp://host:port" and "file:///path", and "unix:///path" for a
 * store that rank 0 serves on a Unix socket to the ranks of its host.  Pure but for a look at the
 * folder of a file.
 */
#ifndef SPARRING_COMMON_STORE_INIT_METHOD_H
#define SPARRING_COMMON_STORE_INIT_METHOD_H

#include "common/base/error.h"
#include "common/base/net.h"
#include "common/launch_env/launch_env.h"

#include <stdbool.h>

struct init_method {
    bool is_file;
    char path[4096];          /* a file's */
    struct endpoint endpoint; /* rank 0's, else */
    char origin[96]; /* where it came from: "--init-method", "SLURM_STEP_NODELIST and default" */
};

/* STATUS_CONFIG names the text and what is wrong with it; STATUS_NOT_FOUND a folder that is not
 * there. */
enum status init_method_parse(const char *text, const struct launch_env *launch,
                              struct init_method *ret, struct error *err);

#endif
