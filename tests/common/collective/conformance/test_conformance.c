/*
 * The conformance suite over every backend that can run here, or over those that
 * SPARRING_TEST_BACKENDS lists ("shm,ring").  Exit status 77, "skipped", when none of them can.
 *
 * SPARRING_TEST_STREAMS=2: so many connections between two ranks; tuned: every rank is on a host of
 * its own (of two with hier), and measures.
 * SPARRING_TEST_HUGE=1 adds operations of more than 4 GiB (slow; 11 GiB of free memory).
 * SPARRING_TEST_STORE=file:///...: this process is one rank of a launched world; see conformance.h.
 */
#include "tests/common/collective/conformance/conformance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BACKENDS_MAX    16
#define RANKS_MAX       5
#define HUGE_FREE_MIB   11000
#define EXIT_SKIPPED    77
#define TIMEOUT_SECONDS 240

static const char *backends[BACKENDS_MAX];
static int backend_count;

/* World sizes 1 to 5; a launched world has its own. */
static bool has_size(unsigned size)
{
    unsigned launched = conformance_launched_size();

    if (launched > 0)
        return size == launched;
    return !CONFORMANCE_INSTRUMENTED || size <= 3 || size == 5;
}

static void each_size(const char *backend, conformance_body *body, unsigned first, unsigned step)
{
    unsigned launched = conformance_launched_size();

    if (launched > RANKS_MAX)
        (void)conformance_run(backend, launched, body);
    for (unsigned n = first; n <= RANKS_MAX; n += launched > 0 ? 1 : step)
        if (has_size(n))
            (void)conformance_run(backend, n, body);
}

#define FOR_SIZES(name, body, first, step)                                                         \
    START_TEST(name)                                                                               \
    {                                                                                              \
        each_size(backends[_i], body, first, step);                                                \
    }                                                                                              \
    END_TEST

FOR_SIZES(matrix, conformance_matrix, 1, 1)
FOR_SIZES(large, conformance_large, 2, 3)
FOR_SIZES(special, conformance_special, 1, 1)
FOR_SIZES(refusals, conformance_refusals, 1, 1)
FOR_SIZES(barriers, conformance_barriers, 1, 1)
FOR_SIZES(everyday, conformance_everyday, 1, 1)
FOR_SIZES(wait_order, conformance_wait_order, 1, 1)
FOR_SIZES(poll, conformance_poll, 1, 1)
FOR_SIZES(deadline, conformance_deadline, 1, 1)
FOR_SIZES(full_queue, conformance_full_queue, 1, 1)
FOR_SIZES(crossing, conformance_crossing, 2, 1)

START_TEST(eight_ranks)
{
    if (conformance_launched_size() == 0)
        (void)conformance_run(backends[_i], CONFORMANCE_RANKS_MAX, conformance_short);
}
END_TEST

/* MemAvailable of /proc/meminfo, in MiB. */
static long long free_mib(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    long long kib = 0;
    char line[256];

    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "MemAvailable: %lld", &kib) == 1)
            break;
    if (file)
        (void)fclose(file);
    return kib / 1024;
}

START_TEST(huge)
{
    const char *wanted = getenv("SPARRING_TEST_HUGE");

    if (!wanted || strcmp(wanted, "1") != 0)
        printf("%s: more than 4 GiB: skipped: SPARRING_TEST_HUGE=1 runs it\n", backends[_i]);
    else if (free_mib() < HUGE_FREE_MIB)
        printf("%s: more than 4 GiB: skipped: %lld MiB of memory are free, %d are needed\n",
               backends[_i], free_mib(), HUGE_FREE_MIB);
    else if (has_size(2))
        (void)conformance_run(backends[_i], 2, conformance_huge);
}
END_TEST

/* ---- which backends ---- */

static bool is_in_build(const char *name)
{
    for (const char *const *known = collective_backends(); *known; known++)
        if (strcmp(*known, name) == 0)
            return true;
    return false;
}

static void add_backend(const char *name)
{
    if (!is_in_build(name))
        printf("%s: skipped: this build has no such backend\n", name);
    else if (backend_count < BACKENDS_MAX)
        backends[backend_count++] = name;
}

static void choose_backends(void)
{
    static char list[512];
    const char *wanted = getenv("SPARRING_TEST_BACKENDS");
    char *rest = NULL;

    if (!wanted || wanted[0] == '\0') {
        for (const char *const *known = collective_backends(); *known; known++)
            add_backend(*known);
        return;
    }
    (void)snprintf(list, sizeof(list), "%s", wanted);
    for (char *name = strtok_r(list, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest))
        add_backend(name);
}

int main(void)
{
    int failed;

    choose_backends();
    if (conformance_launched_size() > 0)
        (void)setenv("CK_FORK", "no", 1); /* a launched process is one rank for all its life */
    conformance_prepare();
    failed =
        SUPPORT_RUN("conformance", TIMEOUT_SECONDS, LOOP_TEST(matrix, 0, backend_count),
                    LOOP_TEST(large, 0, backend_count), LOOP_TEST(special, 0, backend_count),
                    LOOP_TEST(refusals, 0, backend_count), LOOP_TEST(barriers, 0, backend_count),
                    LOOP_TEST(everyday, 0, backend_count), LOOP_TEST(wait_order, 0, backend_count),
                    LOOP_TEST(poll, 0, backend_count), LOOP_TEST(deadline, 0, backend_count),
                    LOOP_TEST(full_queue, 0, backend_count), LOOP_TEST(crossing, 0, backend_count),
                    LOOP_TEST(eight_ranks, 0, backend_count), LOOP_TEST(huge, 0, backend_count));
    return failed == EXIT_SUCCESS && !conformance_ran() ? EXIT_SKIPPED : failed;
}
