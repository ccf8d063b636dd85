/*
 * allocation: this command again where an engine has hosts for it: in an allocation that it asks
 * for, or in a script for its queue.
 */
#ifndef SPARRING_EXPERIMENTS_COMPARE_ALLOCATION_H
#define SPARRING_EXPERIMENTS_COMPARE_ALLOCATION_H

#include "experiments/cluster/engine.h"
#include "experiments/cluster/kubernetes.h"

#include <stdbool.h>
#include <stddef.h>

#define ALLOCATION_MORE 75 /* exit code of a command that has run one block, and has more */

struct allocation_request {
    const struct engine *engine;
    const char *on;                              /* of --on */
    const struct kubernetes_options *kubernetes; /* for a script */
    size_t hosts;
    char *const *arguments; /* of this command, its name first; NULL-terminated */
    const char *out;        /* a further --out; NULL: none */
};

/* Become this command in an allocation.  Returns only where that fails. */
enum status allocation_enter(const struct allocation_request *r, struct error *err);

/* Run it in one allocation after another until it ends otherwise than with ALLOCATION_MORE; with
 * its exit code.  Signals that ask to stop go to it. */
enum status allocation_repeat(const struct allocation_request *r, int *ret_exit_code,
                              struct error *err);

/* Print what the engine's queue takes to run the command. */
enum status allocation_print_script(const struct allocation_request *r, const char *job,
                                    struct error *err);

#endif
