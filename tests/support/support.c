/* Process-wide state of a test program: its temporary folder, random seed and held ports. */
#include "tests/support/support.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/parse.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

void support_note_assertion(const char *file, int line)
{
    static atomic_uint count; /* of this test: each has a process of its own */
    unsigned before = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);

    if (before < 1000 || before % 1000 == 0)
        _mark_point(file, line);
}

/* For tests/support/slowest: what of the time was computing, of all processes that have ended. */
static void print_processor_time(void)
{
    struct rusage used;

    (void)getrusage(RUSAGE_CHILDREN, &used);
    (void)printf("processor: %.2f s\n",
                 (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                     (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6);
}

int support_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    int failed;

    /* Shells start what runs in the background with these ignored, and programs inherit that. */
    (void)signal(SIGHUP, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGQUIT, SIG_DFL);
    srunner_run_all(runner, CK_NORMAL);
    print_processor_time();
    failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

static TCase *add_case(Suite *suite, const struct support_entry *e)
{
    TCase *added = tcase_create(e->case_name);

    if (e->timeout_s > 0)
        tcase_set_timeout(added, e->timeout_s);
    suite_add_tcase(suite, added);
    return added;
}

int support_run_list(const char *name, const struct support_entry *entries)
{
    Suite *suite = suite_create(name);
    TCase *to = NULL;

    for (const struct support_entry *e = entries; e->case_name || e->test || e->is_fixture; e++) {
        if (e->case_name)
            to = add_case(suite, e);
        else if (e->test)
            tcase_add_loop_test(to, e->test, e->first, e->past_last);
        else if (e->checked)
            tcase_add_checked_fixture(to, e->setup, e->teardown);
        else
            tcase_add_unchecked_fixture(to, e->setup, e->teardown);
    }
    return support_run(suite);
}

static char folder[256];
static pid_t folder_owner;

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

static void remove_folder(void)
{
    if (getpid() == folder_owner)
        (void)nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *support_folder(void)
{
    const char *base = getenv("TMPDIR");

    if (folder[0] != '\0' && folder_owner == getpid())
        return folder;
    (void)snprintf(folder, sizeof(folder), "%s/sparring-test-XXXXXX", base ? base : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    folder_owner = getpid();
    (void)atexit(remove_folder);
    return folder;
}

/* Paths stay valid until the process ends: a test makes few. */
static const char *keep_path(const char *first, const char *second)
{
    static char
        *kept[1024]; /* reachable, so that the leak checker counts only what is ours to free */
    static size_t length;
    char *path = NULL;

    ck_assert_int_ge(asprintf(&path, "%s/%s", first, second), 0);
    ck_assert_uint_lt(length, sizeof(kept) / sizeof(kept[0]));
    kept[length++] = path;
    return path;
}

const char *support_path(const char *name)
{
    return keep_path(support_folder(), name);
}

const char *support_write(const char *name, const void *data, size_t size)
{
    const char *path = support_path(name);
    struct error err = {0};

    assert_ok(file_write_atomic(path, data, size, &err));
    return path;
}

const char *support_data(const char *test_name)
{
    const char *path = getenv("SPARRING_DATA");

    if (!path)
        path = keep_path(support_source(".."), "shared/data");
    if (access(path, R_OK) == 0)
        return path;
    (void)printf("skipped: %s needs real data and '%s' is not there (set SPARRING_DATA)\n",
                 test_name, path);
    return NULL;
}

void support_skip_package(const char *package)
{
    (void)printf("skipped: no %s; ./bootstrap --tests installs it\n", package);
}

void support_check_nccl_skip(const char *backend, const char *reason)
{
    ck_assert_msg(!getenv("SPARRING_TEST_GPU") || strcmp(backend, "nccl") != 0 ||
                      strstr(reason, "have the same GPU") != NULL,
                  "nccl: %s", reason);
}

const char *support_source(const char *name)
{
    const char *root = getenv("SPARRING_SOURCE");

    return keep_path(root ? root : ".", name);
}

const char *support_python(void)
{
    return access("/usr/bin/python3", X_OK) == 0 ? "/usr/bin/python3" : "python3";
}

const char *support_program(const char *name)
{
    const char *bin = getenv("SPARRING_BIN");

    return keep_path(bin ? bin : "build/dev/bin", name);
}

/* Port 0: any free one.  Returns 0 when it is taken. */
static uint16_t hold_port(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* never closed: it holds the port */
    int on = 1;

    ck_assert_int_ge(fd, 0);
    /* A given port must be free, which SO_REUSEADDR would not tell. */
    if (port != 0 && bind(fd, (const struct sockaddr *)&address, length) != 0) {
        (void)close(fd);
        return 0;
    }
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    if (port == 0)
        ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, length), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &length), 0);
    return ntohs(address.sin_port);
}

uint16_t support_port(void)
{
    return hold_port(0);
}

uint16_t support_ports(unsigned count)
{
    for (;;) { /* ports of a failed attempt stay held: the next attempt begins elsewhere */
        uint16_t first = hold_port(0);
        unsigned held = 1;

        while (held < count && first + held <= 65535 && hold_port((uint16_t)(first + held)) != 0)
            held++;
        if (held == count)
            return first;
    }
}

double support_random(void)
{
    static uint64_t state;

    if (state == 0) {
        const char *text = getenv("SPARRING_TEST_SEED");

        if (!text || !parse_uint64(text, &state) || state == 0)
            state = (uint64_t)clock_now_ns() | 1;
        (void)printf("SPARRING_TEST_SEED=%ju\n", (uintmax_t)state);
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}
