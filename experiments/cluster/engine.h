/*
 * engine: what has the hosts of a cluster, such as Slurm: it allocates them, and starts the
 * processes of a job on them, a step for each server and one for all ranks.  Queues, priorities,
 * limits and accounts are its own.
 *
 * Promises: a step ends when the program that add_words names ends or gets kill_signal.  Needs:
 * folders that all hosts share.  Called by compare (allocation, hosts) and launch (steps).
 */
#ifndef SPARRING_EXPERIMENTS_CLUSTER_ENGINE_H
#define SPARRING_EXPERIMENTS_CLUSTER_ENGINE_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "common/base/text_list.h"

#include <stdbool.h>
#include <stddef.h>

#define ENGINE_CHOICES "local|slurm"

/* One task on each of these hosts, in their order; a host that occurs n times has n tasks, one
 * after another. */
struct engine_step {
    const char *const *hosts; /* borrowed */
    size_t length;
    bool is_labelled; /* each line of a task's output begins with the task's number */
};

struct engine {
    const char *name;

    /* Does this process run inside an allocation? */
    bool (*is_allocated)(void);

    /* Run `argv` on this host, inside a new allocation of so many hosts that nobody else uses, and
     * end with its exit code.  Returns only where that fails.  Blocks for as long as the queue. */
    enum status (*allocate)(size_t hosts, char *const *argv, struct error *err);

    /* Is the allocation still there?  Also true where the engine does not say. */
    bool (*is_running)(void);

    /* The names of the allocated hosts; the caller releases *ret. */
    enum status (*read_hosts)(struct text_list *ret, struct error *err);

    /* The words before a program's own that start it as the tasks of a step.  Standard output, the
     * environment and the working folder are ours; the exit code is the largest of the tasks. */
    void (*add_words)(const struct engine_step *step, struct text_list *words);

    /* A script for the engine's queue that runs a command on so many hosts, and again after a
     * preemption: the lines before the command. */
    void (*add_script)(size_t hosts, const char *job, struct strbuf *text);

    int stop_signal; /* to the first program of a step: its tasks get it */
    int kill_signal; /* its tasks are killed, and it ends */
};

/* NULL: "local", no engine. */
const struct engine *engine_find(const char *name);

extern const struct engine engine_slurm;

#endif
