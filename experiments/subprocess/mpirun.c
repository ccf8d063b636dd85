/*
 * mpirun: children and their states are read from /proc; on a kernel without CONFIG_PROC_CHILDREN
 * the list is empty, and no mpirun is ever reported stuck.
 */
#include "experiments/subprocess/mpirun.h"

#include "common/base/clock.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

#define STUCK_NS (INT64_C(5) * 1000000000)

static bool is_zombie(long pid)
{
    char path[64];
    char text[512] = "";
    const char *state;
    FILE *file;

    (void)snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return false;
    state = fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
    (void)fclose(file);
    return state && strncmp(state, ") Z", 3) == 0;
}

/* Count the children of one thread; clears *ret_all when one of them is not a zombie. */
static size_t count_children(const char *path, bool *ret_all)
{
    FILE *file = fopen(path, "re");
    size_t count = 0;
    long pid;

    while (file && fscanf(file, "%ld", &pid) == 1) {
        count++;
        *ret_all &= is_zombie(pid);
    }
    if (file)
        (void)fclose(file);
    return count;
}

bool mpirun_is_stuck(struct mpirun_watch *w)
{
    char pattern[64];
    glob_t threads = {0};
    size_t children = 0;
    bool all = true;

    if (clock_now_ns() < w->next_check_ns)
        return false;
    w->next_check_ns = clock_deadline_ns(MPIRUN_CHECK_MS);
    (void)snprintf(pattern, sizeof(pattern), "/proc/%ld/task/*/children", (long)w->pid);
    if (glob(pattern, GLOB_NOSORT, NULL, &threads) == 0)
        for (size_t i = 0; i < threads.gl_pathc; i++)
            children += count_children(threads.gl_pathv[i], &all);
    globfree(&threads);
    if (children == 0 || !all)
        w->ended_ns = 0;
    else if (w->ended_ns == 0)
        w->ended_ns = clock_now_ns();
    return w->ended_ns != 0 && clock_now_ns() - w->ended_ns >= STUCK_NS;
}
