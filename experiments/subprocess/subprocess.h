/*
 * subprocess: one child program, started and waited for until a deadline; no process of the child's
 * own process group survives the call.  Or one that shares this process's terminal and group.
 * When the thread that started it ends (kill -9 of this process), a program with a group of its own
 * gets SIGKILL, one that shares the group SIGTERM.
 * Needs: only common/base.  Called by compare, report (gnuplot), launch (mpirun.h), standby and
 * bench.
 */
#ifndef SPARRING_EXPERIMENTS_SUBPROCESS_SUBPROCESS_H
#define SPARRING_EXPERIMENTS_SUBPROCESS_SUBPROCESS_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define SUBPROCESS_GRACE_MS 5000 /* between SIGTERM and SIGKILL */

struct subprocess_request {
    const char *const *argv; /* NULL-terminated; argv[0] is looked up in PATH unless it has a '/' */
    const char *log_path;    /* gets stdout and stderr, created or truncated; stdin is empty */
    int64_t timeout_ms;      /* then the group is stopped */
    int ignores_stop;        /* a stop signal to this process does not stop it */
    void (*tick)(void *context); /* about four times a second while waiting; may be NULL */
    void *context;
};

enum subprocess_outcome {
    SUBPROCESS_EXITED,    /* code: its exit code */
    SUBPROCESS_SIGNALED,  /* code: the signal that ended it */
    SUBPROCESS_TIMED_OUT, /* we stopped it at the deadline */
    SUBPROCESS_STOPPED,   /* we stopped it because we got a stop signal (common/base/stop) */
};

struct subprocess_result {
    enum subprocess_outcome outcome;
    int code;
    double seconds;
};

/* Start the program and wait for its end; blocks up to timeout_ms and the grace time.  Fails when
 * it cannot be started (STATUS_NOT_FOUND: no such program); how it ended is in *ret. */
enum status subprocess_run(const struct subprocess_request *request, struct subprocess_result *ret,
                           struct error *err);

/* "exit code 3", "killed by signal 9 (Killed)", "timed out after 60 s", "stopped". */
void subprocess_result_text(const struct subprocess_result *result, char *text, size_t size);

/* The last line of a log_path; "": it is empty. */
enum status subprocess_last_line(const char *log_path, char *line, size_t size, struct error *err);

/* A program that shares this one's streams and process group, and that the caller waits for. */
struct subprocess_child {
    pid_t pid;
    int fd; /* becomes readable when it has ended; closed by subprocess_has_ended */
};

enum status subprocess_start(const char *const *argv, struct subprocess_child *ret,
                             struct error *err);

/* Does not wait.  *ret_exit_code as a shell has it: 128 and more for a signal. */
bool subprocess_has_ended(struct subprocess_child *child, int *ret_exit_code);

/* Send it a signal that this process has got, except SIGINT: a terminal sends that to both. */
void subprocess_pass_on(const struct subprocess_child *child, int signal_number);

/* Folder of this executable, without a slash at the end. */
enum status subprocess_program_folder(char *text, size_t size, struct error *err);

#endif
