/*
 * job: what a client may ask a standby daemon to run.  Internal to standby, except for tests.
 */
#ifndef SPARRING_EXPERIMENTS_STANDBY_JOB_H
#define SPARRING_EXPERIMENTS_STANDBY_JOB_H

#include "common/wire/wire_standby.h"

/* Does a task take this variable, "NAME=value", from its client? */
bool job_takes_variable(const char *variable);

/* STATUS_DENIED names the word or variable that the daemon does not accept: another program, paths
 * outside `folders` (resolved, absolute), keys, variables that are not a job's. */
enum status job_check(const struct standby_request *r, const struct text_list *folders,
                      struct error *err);

/* The command line of a job that was checked: `env`, so that the folder, the job's variables and
 * then `own` ones are set after the fork, and the program, which is in `programs`. */
void job_command(const struct standby_request *r, const char *programs, const char *folder,
                 const struct text_list *own, struct text_list *words);

#endif
