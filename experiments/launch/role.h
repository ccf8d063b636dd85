/*
 * role: what this host is in a job that another framework's launcher describes, so that jobs
 * written for TFJob, ps-lite and BytePS start unchanged: each of their processes is a
 * `sparring launch` with the same words.
 *
 *   TF_CONFIG   the addresses of chief, workers and ps in one JSON text.  Chief and workers are the
 *               nodes of the job, in this order, and the first one's address is that of rank 0
 *   DMLC_*      the address of the scheduler alone; see role_dmlc.c
 */
#ifndef SPARRING_EXPERIMENTS_LAUNCH_ROLE_H
#define SPARRING_EXPERIMENTS_LAUNCH_ROLE_H

#include "common/base/error.h"

#include <stdint.h>

struct plan_options;

enum role_kind {
    ROLE_NONE, /* of no other launcher; also a worker of TF_CONFIG, which is a node like others */
    ROLE_PS,   /* a server of TF_CONFIG, which is stopped from outside */
    ROLE_SCHEDULER, /* of DMLC_*, as the following */
    ROLE_SERVER,
    ROLE_WORKER,
};

struct role {
    enum role_kind kind;
    char listen[32];           /* ROLE_PS: "0.0.0.0:PORT" */
    char scheduler[300];       /* "host:port" */
    unsigned workers, servers; /* of the job */
    int64_t worker_id;         /* DMLC_WORKER_ID; -1: the order in which they come */
};

/* Read the variables.  For a worker of TF_CONFIG it sets PET_NNODES and the like, where they are
 * not set, and SPARRING_SERVERS.  STATUS_CONFIG names a variable that is missing or malformed. */
enum status role_read(struct role *ret, struct error *err);

/* Of any kind but ROLE_NONE: blocks until the job has ended.  argv: the words of `launch`. */
enum status role_run(const struct role *role, const struct plan_options *options, char *const *argv,
                     int *ret_exit_code, struct error *err);

/* The part of role_run for DMLC_*. */
enum status role_run_dmlc(const struct role *role, const struct plan_options *options,
                          char *const *argv, int *ret_exit_code, struct error *err);

#endif
