/*
 * sweep_run: the rank processes of a sweep.  Rank 0 writes results into a named pipe; every process
 * is watched through a pidfd, so that one that dies ends the benchmark at once instead of at a
 * time-out.  Where MPI is measured the only process to watch is mpirun, whose children the ranks
 * are.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "experiments/bench/sweep.h"
#include "experiments/network/network.h"
#include "experiments/subprocess/mpirun.h"
#include "experiments/subprocess/temporary_folder.h"

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

struct sweep_parent {
    const struct sweep *sweep;
    const struct sweep_options *options;
    char folder[256];
    struct bench_process *processes; /* owned */
    size_t wanted, started, running;
    struct network network;
    int out_fd;         /* read end of the pipe; -1 after its end */
    struct strbuf text; /* read but not yet parsed */
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

static void add_rank_words(const struct sweep_parent *run, const char *rank, struct words *w)
{
    add_word(w, "bench");
    add_word(w, "%s", sweep_call_name(run->sweep->call));
    add_word(w, "%s", SWEEP_AS_RANK);
    add_word(w, "%s", rank);
    add_word(w, "%s", run->folder);
}

/* The arguments of `sparring bench CALL --as-mpirun`.  mpirun binds no rank to a core: --pin does
 * that for every backend alike.  Where ranks outnumber cores Open MPI yields by itself. */
static enum status add_mpirun_words(const struct sweep_parent *run, struct words *w,
                                    struct error *err)
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
    add_word(w, "%s", self);
    add_rank_words(run, "mpi", w);
    return STATUS_OK;
}

/* posix_spawn this program again, stdout to our stderr.  mpirun gets its own process group: stopped
 * by ^C and then by us it would leave its files behind. */
static int spawn_self(const struct words *w, bool is_mpirun, pid_t *ret_pid)
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

static enum status start_process(struct sweep_parent *run, const struct words *words,
                                 struct error *err)
{
    struct bench_process *p = &run->processes[run->started];
    int failed = spawn_self(words, run->sweep->needs_mpirun, &p->pid);

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

/* Start a rank on its host; ranks are assigned in blocks: 0, 1 to the first of two, 2, 3 to
 * the second. */
static enum status start_rank(struct sweep_parent *run, size_t rank, struct error *err)
{
    struct words words = {.length = 0};
    size_t host = rank * run->sweep->hosts / run->sweep->nproc;
    char text[32];
    enum status status = STATUS_OK;

    (void)snprintf(text, sizeof(text), "%zu", rank);
    add_word(&words, "sparring");
    add_rank_words(run, text, &words);
    if (run->network.length == 0)
        return start_process(run, &words, err);
    network_address(host, text, sizeof(text));
    if (setenv(SWEEP_ADDRESS, text, 1) != 0)
        return error_set_errno(err, errno, "cannot set %s", SWEEP_ADDRESS);
    status = network_enter(&run->network, host, err);
    if (status == STATUS_OK)
        status = start_process(run, &words, err);
    (void)unsetenv(SWEEP_ADDRESS);
    if (status == STATUS_OK)
        return network_leave(&run->network, err);
    (void)network_leave(&run->network, NULL);
    return status;
}

static enum status open_network(struct sweep_parent *run, struct error *err)
{
    enum status status = network_open(&run->network, run->sweep->links, run->sweep->hosts,
                                      &run->options->network, false, err);

    return status == STATUS_OK ? network_measure(&run->network, err) : status;
}

static enum status start_processes(struct sweep_parent *run, struct error *err)
{
    struct words words = {.length = 0};
    enum status status = STATUS_OK;

    if (run->sweep->needs_mpirun) {
        status = add_mpirun_words(run, &words, err);
        return status == STATUS_OK ? start_process(run, &words, err) : status;
    }
    if (run->sweep->hosts > 1)
        status = open_network(run, err);
    for (size_t r = 0; r < run->wanted && status == STATUS_OK; r++)
        status = start_rank(run, r, err);
    return status;
}

/* ---- watching ---- */

/* Bytes of the result at the head of the text; 0 when it is incomplete. */
static enum status result_bytes(const struct sweep_parent *run, struct sweep_result *result,
                                size_t *ret_bytes, struct error *err)
{
    *ret_bytes = 0;
    if (run->text.length < sizeof(*result))
        return STATUS_OK;
    memcpy(result, run->text.text, sizeof(*result));
    result->note[sizeof(result->note) - 1] = '\0';
    if ((result->kind != RESULT_ROW && result->kind != RESULT_NOTE) ||
        result->series >= run->sweep->length || result->dtype >= DTYPE_COUNT ||
        result->op >= REDUCE_OP_COUNT || result->times > UINT32_MAX)
        return error_set(err, STATUS_PROTOCOL, "rank 0 wrote something that is no record");
    if (run->text.length >= sizeof(*result) + result->times * sizeof(double))
        *ret_bytes = sizeof(*result) + (size_t)result->times * sizeof(double);
    return STATUS_OK;
}

static enum status handle_results(struct sweep_parent *run, sweep_result_fn *handle_result,
                                  void *context, struct error *err)
{
    struct sweep_result result;
    size_t bytes = 0;
    enum status status = result_bytes(run, &result, &bytes, err);

    while (status == STATUS_OK && bytes > 0) {
        double *times = NULL;
        struct strbuf rest = STRBUF_INIT;

        status = mem_calloc((size_t)result.times, sizeof(double), "times", &times, err);
        if (status != STATUS_OK)
            return status;
        memcpy(times, run->text.text + sizeof(result), (size_t)result.times * sizeof(double));
        handle_result(context, &result, times);
        free(times);
        strbuf_add_bytes(&rest, run->text.text + bytes, run->text.length - bytes);
        strbuf_release(&run->text);
        run->text = rest;
        status = result_bytes(run, &result, &bytes, err);
    }
    return status;
}

static enum status read_results(struct sweep_parent *run, sweep_result_fn *handle_result,
                                void *context, struct error *err)
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
    return handle_results(run, handle_result, context, err);
}

/* Reap a process; STATUS_PEER_LOST with its exit code or signal when it failed. */
static enum status reap_process(struct sweep_parent *run, size_t index, struct error *err)
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

/* Reap all that have ended.  Among several, a rank that was killed is reported before ranks that
 * may have failed in consequence. */
static enum status reap_ended(struct sweep_parent *run, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t i = 0; i < run->started; i++) {
        struct pollfd ended = {.fd = run->processes[i].pidfd, .events = POLLIN};
        struct error one = {0};

        if (run->processes[i].pid == 0 || poll(&ended, 1, 0) != 1 ||
            reap_process(run, i, &one) == STATUS_OK)
            continue;
        if (status == STATUS_OK || strstr(one.text, "killed"))
            status = error_set(err, one.status, "%s", one.text);
    }
    return status;
}

/* Wait until all have ended and the pipe, which then has no writer, is empty. */
static enum status wait_for_ranks(struct sweep_parent *run, struct pollfd *fds,
                                  sweep_result_fn *handle_result, void *context, struct error *err)
{
    struct mpirun_watch mpirun = {0};
    enum status status = STATUS_OK;

    while (status == STATUS_OK && run->running > 0) {
        int check_ms = run->sweep->needs_mpirun ? MPIRUN_CHECK_MS : -1;

        fds[0] = (struct pollfd){.fd = run->out_fd, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = stop_fd(), .events = POLLIN};
        for (size_t i = 0; i < run->started; i++)
            fds[2 + i] = (struct pollfd){.fd = run->processes[i].pidfd, .events = POLLIN};
        if (poll(fds, 2 + run->started, check_ms) < 0 && errno != EINTR)
            return error_set_errno(err, errno, "cannot wait for the ranks");
        if (stop_requested())
            return error_set(err, STATUS_CANCELLED, "stopped by a signal");
        if (fds[0].revents)
            status = read_results(run, handle_result, context, err);
        if (status == STATUS_OK)
            status = reap_ended(run, err);
        mpirun.pid = run->processes[0].pid;
        if (status == STATUS_OK && run->sweep->needs_mpirun && run->running > 0 &&
            mpirun_is_stuck(&mpirun))
            status =
                error_set(err, STATUS_PEER_LOST, "mpirun does not end, and all its ranks have");
    }
    while (status == STATUS_OK && run->out_fd >= 0)
        status = read_results(run, handle_result, context, err);
    return status;
}

/* ---- ending ---- */

/* mpirun ends its ranks at SIGTERM but not when it is killed, so it gets SIGTERM first; it may hang
 * (mpirun.h), so it gets SIGKILL after MPIRUN_END_MS. */
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

static void stop_processes(struct sweep_parent *run)
{
    for (size_t i = 0; i < run->started; i++)
        if (run->processes[i].pid != 0)
            end_process(&run->processes[i], run->sweep->needs_mpirun);
    for (size_t i = 0; i < run->started; i++)
        if (run->processes[i].pid != 0)
            (void)reap_process(run, i, NULL);
    if (run->out_fd >= 0)
        (void)close(run->out_fd);
    network_close(&run->network);
    strbuf_release(&run->text);
    temporary_folder_remove(run->folder);
    free(run->processes);
}

/* Write the options and make the pipe in the folder. */
static enum status prepare_folder(struct sweep_parent *run, const struct strbuf *config,
                                  struct error *err)
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
                      const struct strbuf *config, sweep_result_fn *handle_result, void *context,
                      struct error *err)
{
    struct sweep_parent run = {.sweep = sweep,
                               .options = options,
                               .out_fd = -1,
                               .network = NETWORK_CLOSED,
                               .text = STRBUF_INIT};
    struct pollfd *fds = NULL;
    enum status status = temporary_folder_make("bench", run.folder, sizeof(run.folder), err);

    if (status != STATUS_OK)
        return status;
    status = prepare_folder(&run, config, err);
    if (status == STATUS_OK)
        status = mem_calloc(run.wanted + 2, sizeof(*fds), "ranks", &fds, err);
    if (status == STATUS_OK)
        status = start_processes(&run, err);
    if (status == STATUS_OK)
        status = wait_for_ranks(&run, fds, handle_result, context, err);
    stop_processes(&run);
    free(fds);
    return status;
}
