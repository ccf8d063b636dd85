/*
 * The rank processes of a sweep.  Rank 0 writes records into a named pipe; every process is watched
 * through a pidfd, so one that dies ends the benchmark at once instead of at a time-out.  Where MPI
 * is measured there is one process to watch, mpirun, and the ranks are its.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "experiments/bench/bench_folder.h"
#include "experiments/bench/netns.h"
#include "experiments/bench/sweep.h"
#include "experiments/subprocess/mpirun.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORD_MAX  640
#define WORDS_MAX 24
#define READ_MAX  65536

#define MPIRUN_END_MS 10000

struct bench_process {
    pid_t pid; /* 0: ended */
    int pidfd; /* -1: none */
};

struct run {
    const struct sweep *sweep;
    const struct sweep_options *options;
    char folder[256];
    struct bench_process *processes; /* owned */
    size_t wanted, started, running;
    struct netns netns;
    int out_fd;         /* read end of the pipe; -1 after its end */
    struct strbuf text; /* read and not yet taken */
};

/* ---- starting ---- */

struct words {
    char texts[WORDS_MAX][WORD_MAX];
    char *argv[WORDS_MAX + 1];
    size_t length;
};

__attribute__((format(printf, 2, 3))) static void add_word(struct words *w, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(w->texts[w->length], WORD_MAX, format, args);
    va_end(args);
    w->argv[w->length] = w->texts[w->length];
    w->length++;
}

static void add_rank_words(const struct run *run, const char *rank, struct words *w)
{
    add_word(w, "bench");
    add_word(w, "%s", sweep_call_name(run->sweep->call));
    add_word(w, "%s", SWEEP_AS_RANK);
    add_word(w, "%s", rank);
    add_word(w, "%s", run->folder);
}

/* What `sparring bench CALL --as-mpirun` gets.  No rank is bound to a core by mpirun: --pin does
 * that for every backend alike.  Where ranks outnumber cores Open MPI yields by itself. */
static enum status add_mpirun_words(const struct run *run, struct words *w, struct error *err)
{
    char self[512];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (length < 0)
        return error_set_errno(err, errno, "cannot find this program");
    self[length] = '\0';
    add_word(w, "sparring");
    add_word(w, "bench");
    add_word(w, "%s", sweep_call_name(run->sweep->call));
    add_word(w, "%s", SWEEP_AS_MPIRUN);
    add_word(w, "-n");
    add_word(w, "%u", run->sweep->nproc);
    add_word(w, "--bind-to");
    add_word(w, "none");
    add_word(w, "--oversubscribe");
    add_word(w, "%s", self);
    add_rank_words(run, "mpi", w);
    return STATUS_OK;
}

/* posix_spawn of this program again, stdout to our stderr.  mpirun gets a group of its own: told to
 * stop by ^C and then by us it would leave its files behind. */
static int spawn(const struct words *w, bool is_mpirun, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int failed = posix_spawn_file_actions_init(&actions);

    if (failed != 0)
        return failed;
    (void)posix_spawnattr_init(&attributes);
    if (is_mpirun)
        (void)posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    failed = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (failed == 0)
        failed = posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
    if (failed == 0)
        failed = posix_spawn(ret_pid, "/proc/self/exe", &actions, &attributes, w->argv, environ);
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return failed;
}

static enum status start_process(struct run *run, const struct words *words, struct error *err)
{
    struct bench_process *p = &run->processes[run->started];
    int failed = spawn(words, run->sweep->needs_mpirun, &p->pid);

    p->pidfd = -1;
    if (failed != 0) {
        p->pid = 0;
        return error_set_errno(err, failed, "cannot start rank %zu", run->started);
    }
    run->started++;
    run->running++;
    p->pidfd = pidfd_open(p->pid, 0);
    if (p->pidfd < 0)
        return error_set_errno(err, errno, "cannot watch rank %zu", run->started - 1);
    return STATUS_OK;
}

/* In its namespace, ranks in blocks: 0, 1 in the first of two, 2, 3 in the second. */
static enum status start_rank(struct run *run, size_t rank, struct error *err)
{
    struct words words = {.length = 0};
    size_t host = rank * run->sweep->hosts / run->sweep->nproc;
    char text[32];
    enum status status = STATUS_OK;

    (void)snprintf(text, sizeof(text), "%zu", rank);
    add_word(&words, "sparring");
    add_rank_words(run, text, &words);
    if (run->netns.length == 0)
        return start_process(run, &words, err);
    netns_address(host, text, sizeof(text));
    if (setenv(NETNS_ADDRESS, text, 1) != 0)
        return error_set_errno(err, errno, "cannot set %s", NETNS_ADDRESS);
    status = netns_enter(&run->netns, host, err);
    if (status == STATUS_OK)
        status = start_process(run, &words, err);
    (void)unsetenv(NETNS_ADDRESS);
    if (status == STATUS_OK)
        return netns_leave(&run->netns, err);
    (void)netns_leave(&run->netns, NULL);
    return status;
}

static enum status start(struct run *run, struct error *err)
{
    struct words words = {.length = 0};
    enum status status = STATUS_OK;

    if (run->sweep->needs_mpirun) {
        status = add_mpirun_words(run, &words, err);
        return status == STATUS_OK ? start_process(run, &words, err) : status;
    }
    if (run->sweep->hosts > 1)
        status = netns_open(&run->netns, run->sweep->hosts, run->options->rate, err);
    for (size_t r = 0; r < run->wanted && status == STATUS_OK; r++)
        status = start_rank(run, r, err);
    return status;
}

/* ---- watching ---- */

/* Bytes of the record at the head of the text; 0 when they are not all there. */
static enum status record_bytes(const struct run *run, struct sweep_record *record,
                                size_t *ret_bytes, struct error *err)
{
    *ret_bytes = 0;
    if (run->text.length < sizeof(*record))
        return STATUS_OK;
    memcpy(record, run->text.text, sizeof(*record));
    record->note[sizeof(record->note) - 1] = '\0';
    if ((record->kind != RECORD_ROW && record->kind != RECORD_NOTE) ||
        record->series >= run->sweep->length || record->dtype >= DTYPE_COUNT ||
        record->op >= REDUCE_OP_COUNT || record->times > UINT32_MAX)
        return error_set(err, STATUS_PROTOCOL, "rank 0 wrote something that is no record");
    if (run->text.length >= sizeof(*record) + record->times * sizeof(double))
        *ret_bytes = sizeof(*record) + (size_t)record->times * sizeof(double);
    return STATUS_OK;
}

static enum status take_records(struct run *run, sweep_take *take, void *context, struct error *err)
{
    struct sweep_record record;
    size_t bytes = 0;
    enum status status = record_bytes(run, &record, &bytes, err);

    while (status == STATUS_OK && bytes > 0) {
        double *times = NULL;
        struct strbuf rest = STRBUF_INIT;

        status = mem_calloc((size_t)record.times, sizeof(double), "times", &times, err);
        if (status != STATUS_OK)
            return status;
        memcpy(times, run->text.text + sizeof(record), (size_t)record.times * sizeof(double));
        take(context, &record, times);
        free(times);
        strbuf_add_bytes(&rest, run->text.text + bytes, run->text.length - bytes);
        strbuf_release(&run->text);
        run->text = rest;
        status = record_bytes(run, &record, &bytes, err);
    }
    return status;
}

static enum status read_records(struct run *run, sweep_take *take, void *context, struct error *err)
{
    char bytes[READ_MAX];
    ssize_t got = read(run->out_fd, bytes, sizeof(bytes));

    if (got < 0)
        return errno == EINTR || errno == EAGAIN
                   ? STATUS_OK
                   : error_set_errno(err, errno, "cannot read from rank 0");
    if (got == 0) {
        (void)close(run->out_fd);
        run->out_fd = -1;
        return STATUS_OK;
    }
    strbuf_add_bytes(&run->text, bytes, (size_t)got);
    if (!strbuf_ok(&run->text))
        return error_set(err, STATUS_NO_MEMORY, "no memory for a record");
    return take_records(run, take, context, err);
}

/* Take the end of a process; what it says when it did not end well. */
static enum status reap(struct run *run, size_t index, struct error *err)
{
    char who[32] = "mpirun";
    int state = 0;

    if (!run->sweep->needs_mpirun)
        (void)snprintf(who, sizeof(who), "rank %zu", index);
    while (waitpid(run->processes[index].pid, &state, 0) < 0 && errno == EINTR)
        continue;
    if (run->processes[index].pidfd >= 0)
        (void)close(run->processes[index].pidfd);
    run->processes[index] = (struct bench_process){.pid = 0, .pidfd = -1};
    run->running--;
    if (WIFSIGNALED(state))
        return error_set(err, STATUS_PEER_LOST, "%s was killed by signal %d (%s)", who,
                         WTERMSIG(state), strsignal(WTERMSIG(state)));
    if (WEXITSTATUS(state) != 0)
        return error_set(err, STATUS_PEER_LOST, "%s ended with exit code %d", who,
                         WEXITSTATUS(state));
    return STATUS_OK;
}

/* Reap all that have ended.  A rank that a signal ended comes before those that failed because of
 * it, should they be seen together. */
static enum status reap_ended(struct run *run, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < run->started; i++) {
        struct pollfd ended = {.fd = run->processes[i].pidfd, .events = POLLIN};
        struct error one = {0};

        if (run->processes[i].pid == 0 || poll(&ended, 1, 0) != 1 ||
            reap(run, i, &one) == STATUS_OK)
            continue;
        if (status == STATUS_OK || strstr(one.text, "killed"))
            status = error_set(err, one.status, "%s", one.text);
    }
    return status;
}

/* Until all have ended and the pipe, which then has no writer, is empty. */
static enum status watch(struct run *run, struct pollfd *fds, sweep_take *take, void *context,
                         struct error *err)
{
    struct mpirun_watch mpirun = {0};
    enum status status = STATUS_OK;

    while (status == STATUS_OK && run->running > 0) {
        int look_ms = run->sweep->needs_mpirun ? MPIRUN_LOOK_MS : -1;

        fds[0] = (struct pollfd){.fd = run->out_fd, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = stop_fd(), .events = POLLIN};
        for (size_t i = 0; i < run->started; i++)
            fds[2 + i] = (struct pollfd){.fd = run->processes[i].pidfd, .events = POLLIN};
        if (poll(fds, 2 + run->started, look_ms) < 0 && errno != EINTR)
            return error_set_errno(err, errno, "cannot wait for the ranks");
        if (stop_requested())
            return error_set(err, STATUS_CANCELLED, "stopped by a signal");
        if (fds[0].revents)
            status = read_records(run, take, context, err);
        if (status == STATUS_OK)
            status = reap_ended(run, err);
        mpirun.pid = run->processes[0].pid;
        if (status == STATUS_OK && run->sweep->needs_mpirun && run->running > 0 &&
            mpirun_is_stuck(&mpirun))
            status =
                error_set(err, STATUS_PEER_LOST, "mpirun does not end, and all its ranks have");
    }
    while (status == STATUS_OK && run->out_fd >= 0)
        status = read_records(run, take, context, err);
    return status;
}

/* ---- ending ---- */

/* mpirun ends its ranks when it is asked to stop, and not when it is killed; they end with it.  It
 * need not react (mpirun.h). */
static void end_process(const struct bench_process *p, bool is_mpirun)
{
    struct pollfd ended = {.fd = p->pidfd, .events = POLLIN};

    if (is_mpirun) {
        (void)kill(p->pid, SIGTERM);
        if (poll(&ended, 1, MPIRUN_END_MS) == 1)
            return;
    }
    (void)kill(p->pid, SIGKILL);
}

static void end(struct run *run)
{
    for (size_t i = 0; i < run->started; i++)
        if (run->processes[i].pid != 0)
            end_process(&run->processes[i], run->sweep->needs_mpirun);
    for (size_t i = 0; i < run->started; i++)
        if (run->processes[i].pid != 0)
            (void)reap(run, i, NULL);
    if (run->out_fd >= 0)
        (void)close(run->out_fd);
    netns_close(&run->netns);
    strbuf_release(&run->text);
    bench_folder_remove(run->folder);
    free(run->processes);
}

/* The folder with the pipe and the options in it. */
static enum status prepare(struct run *run, const struct strbuf *config, struct error *err)
{
    char path[320];
    enum status status;

    (void)snprintf(path, sizeof(path), "%s/%s", run->folder, SWEEP_CONFIG);
    status = file_write_atomic(path, config->text, config->length, err);
    if (status != STATUS_OK)
        return status;
    (void)snprintf(path, sizeof(path), "%s/%s", run->folder, SWEEP_PIPE);
    if (mkfifo(path, 0600) != 0)
        return error_set_errno(err, errno, "cannot make a pipe '%s'", path);
    run->out_fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (run->out_fd < 0)
        return error_set_errno(err, errno, "cannot open '%s'", path);
    run->wanted = run->sweep->needs_mpirun ? 1 : run->sweep->nproc;
    return mem_calloc(run->wanted, sizeof(*run->processes), "ranks", &run->processes, err);
}

enum status sweep_run(const struct sweep *sweep, const struct sweep_options *options,
                      const struct strbuf *config, sweep_take *take, void *context,
                      struct error *err)
{
    struct run run = {.sweep = sweep,
                      .options = options,
                      .out_fd = -1,
                      .netns = {.home_fd = -1, .hub_fd = -1},
                      .text = STRBUF_INIT};
    struct pollfd *fds = NULL;
    enum status status = bench_folder_make(run.folder, sizeof(run.folder), err);

    if (status != STATUS_OK)
        return status;
    status = prepare(&run, config, err);
    if (status == STATUS_OK)
        status = mem_calloc(run.wanted + 2, sizeof(*fds), "ranks", &fds, err);
    if (status == STATUS_OK)
        status = start(&run, err);
    if (status == STATUS_OK)
        status = watch(&run, fds, take, context, err);
    end(&run);
    free(fds);
    return status;
}
