/*
 * A job over Unix sockets, including its store, has the same result as over TCP and leaves no
 * socket file.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define WAIT_MS 100000

static const char *run_over_transport(const char *transport, const char *init_method,
                                      const char *checkpoint)
{
    char folder[600];

    (void)snprintf(folder, sizeof(folder), "TMPDIR=%s", support_path("tmp"));
    return process_run(0, WAIT_MS, ARGS(folder),
                       ARGS(support_program("sparring"), "launch", "--standalone",
                            "--nproc-per-node=2", "--servers=2", "--server-transport", transport,
                            "sh", "-c", "echo \"at $SPARRING_SERVERS\"; exec \"$0\" \"$@\"",
                            support_program("sparring-worker"), "--model", "mlp:16-8-4", "--data",
                            "random:512,16,4", "--batch-size", "8", "--steps", "20", "--sync", "ps",
                            "--partition-bytes", "64K", "--init-method", init_method, "--save",
                            checkpoint));
}

static size_t count_entries(const char *path)
{
    DIR *folder = opendir(path);
    size_t count = 0;

    ck_assert_ptr_nonnull(folder);
    while (readdir(folder))
        count++;
    (void)closedir(folder);
    return count - 2; /* "." and ".." */
}

START_TEST(test_same_job_over_both_transports)
{
    const char *tcp = support_path("tcp.safetensors"), *sock = support_path("unix.safetensors");
    char url[600];
    const char *output;

    ck_assert_int_eq(mkdir(support_path("tmp"), 0700), 0);
    output = run_over_transport("tcp", "env://", tcp);
    ck_assert_ptr_nonnull(strstr(output, "at 127.0.0.1:"));
    (void)snprintf(url, sizeof(url), "unix://%s", support_path("store"));
    output = run_over_transport("unix", url, sock);
    ck_assert_ptr_nonnull(strstr(output, "at unix:/"));
    ck_assert_uint_eq(count_entries(support_path("tmp")), 0);
    ck_assert(job_same_tensors(tcp, sock));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("unix", 240, TEST(test_same_job_over_both_transports));
}
