/*
 * engine: what has the hosts of a cluster: Slurm, which allocates them, a list of hosts that are
 * reached by ssh or by our standby daemons, or Kubernetes, for which manifests are written and
 * nothing is run.  It starts the processes of a job on them, in steps.
 * Queues, priorities, limits and accounts are its own.
 *
 * Promises: a step ends when the program that add_command names ends or is killed.  Needs: folders
 * that all hosts share, unless it has_own_folders.  Called by compare (allocation, hosts) and
 * launch (steps).
 */
#ifndef SPARRING_EXPERIMENTS_CLUSTER_ENGINE_H
#define SPARRING_EXPERIMENTS_CLUSTER_ENGINE_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "common/base/text_list.h"

#include <stdbool.h>
#include <stddef.h>

#define ENGINE_METAVAR "local|slurm|ssh:HOST,...|standby:HOST,...|kubernetes"

#define ENGINE_STANDBY_PORT 5750 /* of a daemon, where none is named */

/* Prints a line: two numbers that are equal on hosts with the same programs, whose folder is $0;
 * seconds since 1970; twice the line of /proc/stat for all processors (host_load.h).  A standby
 * daemon knows the script by a name. */
#define ENGINE_PROBE "probe"
#define ENGINE_PROBE_SCRIPT                                                                        \
    "echo $(cat \"$0\"/sparring-worker \"$0\"/sparring-server \"$0\"/sparring | cksum) "           \
    "$(date +%s.%N) $(head -n 1 /proc/stat) $(sleep 0.25; head -n 1 /proc/stat)"

/* One task on each of these hosts, in their order; a host that occurs n times has n tasks, one
 * after another.  All is borrowed. */
struct engine_step {
    const char *const *hosts;
    size_t length;
    const char *const *program;   /* its words; NULL-terminated */
    const char *const *variables; /* "NAME=value" beside this process's own; NULL: none */
    bool is_labelled; /* each line of a task's output begins with the task's number and ": " */
    bool is_stopped;  /* by signals, or by their names on standard input; else it ends by itself */
};

/* A command that runs again after a preemption or a failure, and goes on where it was. */
struct engine_script {
    const char *on; /* of --on */
    size_t hosts;
    const char *job;
    const char *const *program; /* its words without --on; NULL-terminated */
    const struct kubernetes_options *kubernetes;
};

struct engine {
    const char *name;

    /* Does this process run inside an allocation, or need none? */
    bool (*is_allocated)(void);

    /* The words of a program, on this host, that runs `argv` here inside a new allocation of so
     * many hosts that nobody else uses, or of those in the text of --on, and ends with its exit
     * code.  It waits for as long as the queue.  NULL: hosts are not allocated. */
    enum status (*add_allocation)(const char *on, size_t hosts, char *const *argv,
                                  struct text_list *words, struct error *err);

    /* Is the allocation still there?  Also true where the engine does not say. */
    bool (*is_running)(void);

    /* The names of the hosts, of the allocation or in the text of --on; the caller releases *ret.
     */
    enum status (*read_hosts)(const char *on, struct text_list *ret, struct error *err);

    /* The words of a program, on this host, that runs the step.  Its output and its working folder
     * are that of the tasks; its exit code is the largest of the tasks. */
    void (*add_command)(const struct engine_step *step, struct text_list *words);

    /* What the engine's queue takes, as text.  NULL: it has none. */
    enum status (*add_script)(const struct engine_script *script, struct strbuf *text,
                              struct error *err);

    bool writes_manifests; /* it starts nothing from here: it has no other function than add_script,
                              is_allocated (false) and add_allocation (an error) */
    bool has_own_folders;  /* nothing is shared, a task's run directory comes back when it ends */
    bool has_single_tasks; /* a step has one task, without a label */
    bool reads_signals; /* the program reads "TERM" and "KILL", a line each, on standard input, in
                           place of these signals; the end of the input is KILL, too */
    int stop_signal;    /* to the program of a step: its tasks get a request to stop */
    int kill_signal;    /* its tasks are killed, and it ends */
};

/* Of the value of --on; *ret is NULL for "local".  STATUS_INVALID for other texts. */
enum status engine_find(const char *on, const struct engine **ret, struct error *err);

extern const struct engine engine_slurm;
extern const struct engine engine_ssh;
extern const struct engine engine_standby;
extern const struct engine engine_kubernetes;

/* Become this program, which is looked up in PATH.  Returns only where that fails;
 * then the words are released. */
enum status engine_exec(struct text_list *words, struct error *err);

/* The hosts of --on, "NAME:HOST,..."; `form` is that for the error's text. */
enum status engine_list_hosts(const char *on, const char *form, struct text_list *ret,
                              struct error *err);

#endif
