/*
 * standby: a lab's hosts without a scheduler.  A daemon on each waits for tasks of one user at a
 * time, runs them as launch does, and sends their output and run directories back.
 *
 * Promises: no task outlives its client or its daemon; a task is one of our programs with options
 * that are checked, never a command.  Needs: gRPC (proto/standby.proto), the children of launch.
 * Called by `sparring` and, as a program, by the engine standby (experiments/cluster).
 */
#ifndef SPARRING_EXPERIMENTS_STANDBY_STANDBY_H
#define SPARRING_EXPERIMENTS_STANDBY_STANDBY_H

#include "experiments/cluster/engine.h"

#include <stdint.h>

#define STANDBY_TEXT(number)  STANDBY_TEXT_(number)
#define STANDBY_TEXT_(number) #number

#define STANDBY_PATH    "/sparring.v1.Standby/Run"
#define STANDBY_PORT    STANDBY_TEXT(ENGINE_STANDBY_PORT)
#define STANDBY_BEAT_NS INT64_C(1000000000) /* a side says something at least so often ... */
#define STANDBY_LOST_NS                                                                            \
    INT64_C(5000000000) /* ... and is lost when it has been silent for so long */

int standby_serve_main(int argc, char **argv);
int standby_run_main(int argc, char **argv);
int standby_hold_main(int argc, char **argv);

#endif
