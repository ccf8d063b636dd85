/*
 * The rank processes of bench allreduce.  Rank 0 writes records into a pipe; every rank is watched
 * through a pidfd, so a rank that dies ends the benchmark at once instead of at a time-out.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/stop.h"
#include "experiments/bench/bench_allreduce.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORD_MAX  (OPTION_TEXT_MAX + 64)
#define WORDS_MAX 24

struct rank_process {
    pid_t pid; /* 0: ended */
    int pidfd; /* -1: none */
};

struct run {
    const struct allreduce_options *options;
    char folder[256];
    struct rank_process *ranks; /* owned */
    size_t started;
    size_t running;
    int out_fd; /* read end of rank 0's stdout; -1 after its end */
    unsigned char partial[sizeof(struct allreduce_record)];
    size_t partial_bytes;
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

/* The command line of a rank: all that it must know, whatever came from where. */
static void make_words(const struct run *run, size_t rank, struct words *w)
{
    const struct allreduce_options *o = run->options;

    memset(w, 0, sizeof(*w));
    add_word(w, "sparring");
    add_word(w, "bench");
    add_word(w, "allreduce");
    add_word(w, "%s", ALLREDUCE_AS_RANK);
    add_word(w, "%zu", rank);
    add_word(w, "%s", run->folder);
    add_word(w, "--backend=%s", o->backend);
    add_word(w, "--nproc=%jd", (intmax_t)o->nproc);
    add_word(w, "--min-bytes=%ju", (uintmax_t)o->min_bytes);
    add_word(w, "--max-bytes=%ju", (uintmax_t)o->max_bytes);
    add_word(w, "--factor=%jd", (intmax_t)o->factor);
    add_word(w, "--iterations=%s", o->iterations);
    add_word(w, "--rounds=%jd", (intmax_t)o->rounds);
    add_word(w, "--warmup=%jd", (intmax_t)o->warmup);
    add_word(w, "--order=%s", o->order);
    add_word(w, "--ceiling=%s", o->ceiling ? "true" : "false");
    add_word(w, "--timeout-ms=%jd", (intmax_t)o->timeout_ms);
}

/* posix_spawn of this program again, stdout into out_fd, the signal mask empty. */
static int spawn(const struct words *w, int out_fd, pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    int failed = posix_spawn_file_actions_init(&actions);

    if (failed != 0)
        return failed;
    failed = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (failed == 0)
        failed = posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
    if (failed == 0)
        failed = posix_spawn(ret_pid, "/proc/self/exe", &actions, NULL, w->argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    return failed;
}

static enum status start_rank(struct run *run, size_t rank, int out_fd, struct error *err)
{
    struct rank_process *p = &run->ranks[rank];
    struct words words;
    int failed;

    make_words(run, rank, &words);
    p->pidfd = -1;
    failed = spawn(&words, out_fd, &p->pid);
    if (failed != 0)
        return error_set_errno(err, failed, "cannot start rank %zu", rank);
    run->started++;
    run->running++;
    p->pidfd = pidfd_open(p->pid, 0);
    if (p->pidfd < 0)
        return error_set_errno(err, errno, "cannot watch rank %zu", rank);
    return STATUS_OK;
}

static enum status start_ranks(struct run *run, struct error *err)
{
    enum status status = STATUS_OK;
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return error_set_errno(err, errno, "cannot make a pipe");
    run->out_fd = ends[0];
    for (size_t r = 0; r < (size_t)run->options->nproc && status == STATUS_OK; r++)
        status = start_rank(run, r, ends[1], err);
    (void)close(ends[1]);
    return status;
}

/* ---- watching ---- */

static enum status read_records(struct run *run, allreduce_take *take, void *context,
                                struct error *err)
{
    struct allreduce_record record;
    ssize_t got =
        read(run->out_fd, run->partial + run->partial_bytes, sizeof(record) - run->partial_bytes);

    if (got < 0)
        return errno == EINTR ? STATUS_OK : error_set_errno(err, errno, "cannot read from rank 0");
    if (got == 0) {
        (void)close(run->out_fd);
        run->out_fd = -1;
        return STATUS_OK;
    }
    run->partial_bytes += (size_t)got;
    if (run->partial_bytes < sizeof(record))
        return STATUS_OK;
    run->partial_bytes = 0;
    memcpy(&record, run->partial, sizeof(record));
    if (record.series >= SERIES_MAX)
        return error_set(err, STATUS_PROTOCOL, "rank 0 wrote something that is no record");
    take(context, &record);
    return STATUS_OK;
}

/* Take the end of a rank; what it says when it did not end well. */
static enum status reap(struct run *run, size_t rank, struct error *err)
{
    int state = 0;

    while (waitpid(run->ranks[rank].pid, &state, 0) < 0 && errno == EINTR)
        continue;
    if (run->ranks[rank].pidfd >= 0)
        (void)close(run->ranks[rank].pidfd);
    run->ranks[rank] = (struct rank_process){.pid = 0, .pidfd = -1};
    run->running--;
    if (WIFSIGNALED(state))
        return error_set(err, STATUS_PEER_LOST, "rank %zu was killed by signal %d (%s)", rank,
                         WTERMSIG(state), strsignal(WTERMSIG(state)));
    if (WEXITSTATUS(state) != 0)
        return error_set(err, STATUS_PEER_LOST, "rank %zu ended with exit code %d", rank,
                         WEXITSTATUS(state));
    return STATUS_OK;
}

/* Reap all that have ended.  A rank that a signal ended comes before those that failed because of
 * it, should they be seen together. */
static enum status reap_ended(struct run *run, struct error *err)
{
    enum status status = STATUS_OK;

    for (size_t r = 0; r < run->started; r++) {
        struct pollfd ended = {.fd = run->ranks[r].pidfd, .events = POLLIN};
        struct error one = {0};

        if (run->ranks[r].pid == 0 || poll(&ended, 1, 0) != 1 || reap(run, r, &one) == STATUS_OK)
            continue;
        if (status == STATUS_OK || strstr(one.text, "killed"))
            status = error_set(err, one.status, "%s", one.text);
    }
    return status;
}

static enum status watch(struct run *run, struct pollfd *fds, allreduce_take *take, void *context,
                         struct error *err)
{
    enum status status = STATUS_OK;

    while (status == STATUS_OK && (run->running > 0 || run->out_fd >= 0)) {
        fds[0] = (struct pollfd){.fd = run->out_fd, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = stop_fd(), .events = POLLIN};
        for (size_t r = 0; r < run->started; r++)
            fds[2 + r] = (struct pollfd){.fd = run->ranks[r].pidfd, .events = POLLIN};
        if (poll(fds, 2 + run->started, -1) < 0 && errno != EINTR)
            return error_set_errno(err, errno, "cannot wait for the ranks");
        if (stop_requested())
            return error_set(err, STATUS_CANCELLED, "stopped by a signal");
        if (fds[0].revents)
            status = read_records(run, take, context, err);
        if (status == STATUS_OK)
            status = reap_ended(run, err);
    }
    return status;
}

/* ---- ending ---- */

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void end(struct run *run)
{
    for (size_t r = 0; r < run->started; r++)
        if (run->ranks[r].pid != 0)
            (void)kill(run->ranks[r].pid, SIGKILL);
    for (size_t r = 0; r < run->started; r++)
        if (run->ranks[r].pid != 0)
            (void)reap(run, r, NULL);
    if (run->out_fd >= 0)
        (void)close(run->out_fd);
    (void)nftw(run->folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    free(run->ranks);
}

enum status allreduce_run(const struct allreduce_options *options, allreduce_take *take,
                          void *context, struct error *err)
{
    struct run run = {.options = options, .out_fd = -1};
    struct pollfd *fds = NULL;
    const char *base = getenv("TMPDIR");
    enum status status;

    (void)snprintf(run.folder, sizeof(run.folder), "%.200s/sparring-bench-XXXXXX",
                   base && base[0] ? base : "/tmp");
    if (!mkdtemp(run.folder))
        return error_set_errno(err, errno, "cannot make a folder '%s'", run.folder);
    status = mem_calloc((size_t)options->nproc, sizeof(*run.ranks), "ranks", &run.ranks, err);
    if (status == STATUS_OK)
        status = mem_calloc((size_t)options->nproc + 2, sizeof(*fds), "ranks", &fds, err);
    if (status == STATUS_OK)
        status = start_ranks(&run, err);
    if (status == STATUS_OK)
        status = watch(&run, fds, take, context, err);
    end(&run);
    free(fds);
    return status;
}
