/*
 * test_unix: servers on Unix sockets: ownership of a path, stale files, permissions.
 */
#include "common/base/unix_path.h"
#include "tests/common/rpc/rpc_support.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_MS 20000

static struct error err;

static struct rpc_server_config config_of(const char *name)
{
    struct rpc_server_config config = {.listen_origin = "--listen"};

    (void)snprintf(config.listen.host, sizeof(config.listen.host), "unix:%s", support_path(name));
    return config;
}

static enum status call_unary(const struct endpoint *target, int64_t timeout_ms)
{
    struct rpc_client_config config = {.target = *target};
    struct rpc_client *client;
    enum status status = rpc_client_open(&config, &client, &err);

    if (status != STATUS_OK)
        return status;
    status = echo_ask(client, ECHO_UNARY, timeout_ms, &err);
    rpc_client_close(client);
    return status;
}

static mode_t mode_of(const char *path)
{
    struct stat info;

    ck_assert_int_eq(lstat(path, &info), 0);
    return info.st_mode & 07777;
}

START_TEST(round_trip_leaves_no_files)
{
    struct rpc_server_config config = config_of("s");
    mode_t before = umask(022);
    struct echo echo;

    echo_open_with(&echo, &config);
    ck_assert_uint_eq(rpc_server_port(echo.server), 0);
    ck_assert_uint_eq(mode_of(support_path("s")), 0700);
    ck_assert_uint_eq(mode_of(support_path("s.lock")), 0600);
    ck_assert_uint_eq(umask(before), 022); /* as it was */
    assert_ok(call_unary(&config.listen, DEADLINE_MS));
    echo_close(&echo, DEADLINE_MS);
    ck_assert_int_ne(access(support_path("s"), F_OK), 0);
    ck_assert_int_ne(access(support_path("s.lock"), F_OK), 0);
    assert_fails(call_unary(&config.listen, 300), STATUS_UNREACHABLE, "cannot reach unix:/");
    ck_assert_ptr_nonnull(strstr(err.text, "No such file"));
}
END_TEST

START_TEST(second_server_is_refused)
{
    struct rpc_server_config config = config_of("s");
    struct echo first, second;
    char holder[64];

    echo_open_with(&first, &config);
    assert_fails(echo_try_open(&second, &config, &err), STATUS_EXISTS, "(--listen)");
    (void)snprintf(holder, sizeof(holder), "in use by pid %d", (int)getpid());
    ck_assert_msg(strstr(err.text, holder), "'%s' lacks '%s'", err.text, holder);
    assert_ok(call_unary(&config.listen, DEADLINE_MS)); /* the first one still serves */
    echo_close(&first, DEADLINE_MS);
    echo_open_with(&second, &config); /* and the path is free again */
    assert_ok(call_unary(&config.listen, DEADLINE_MS));
    echo_close(&second, DEADLINE_MS);
}
END_TEST

/* A server that serves at the path until it is killed; returns once it does. */
static pid_t start_server(const struct rpc_server_config *config)
{
    int ends[2];
    char byte;
    pid_t child;

    ck_assert_int_eq(pipe(ends), 0);
    child = fork();
    if (child == 0) {
        struct echo echo;

        echo_open_with(&echo, config);
        (void)!write(ends[1], "x", 1);
        for (;;)
            (void)pause();
    }
    (void)close(ends[1]);
    ck_assert_int_eq((int)read(ends[0], &byte, 1), 1);
    (void)close(ends[0]);
    return child;
}

START_TEST(killed_server_is_replaced)
{
    struct rpc_server_config config = config_of("s");
    struct unix_path claim = {.lock_fd = -1};
    struct echo echo;
    pid_t child = start_server(&config);
    char holder[64];

    assert_fails(unix_path_claim(support_path("s"), "--listen", &claim, &err), STATUS_EXISTS,
                 "pid");
    (void)snprintf(holder, sizeof(holder), "in use by pid %d", (int)child);
    ck_assert_msg(strstr(err.text, holder), "'%s' lacks '%s'", err.text, holder);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_int_eq(access(support_path("s"), F_OK), 0); /* both are stale */
    ck_assert_int_eq(access(support_path("s.lock"), F_OK), 0);
    echo_open_with(&echo, &config);
    assert_ok(call_unary(&config.listen, DEADLINE_MS));
    echo_close(&echo, DEADLINE_MS);
}
END_TEST

/* A program that does not use our lock files. */
START_TEST(paths_of_other_programs_are_kept)
{
    struct rpc_server_config config = config_of("s");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct echo echo;

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", support_path("s"));
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_EXISTS,
                 "another program listens there");
    ck_assert_int_ne(access(support_path("s.lock"), F_OK), 0);
    (void)close(fd);
    echo_open_with(&echo, &config); /* stale now */
    echo_close(&echo, DEADLINE_MS);
    (void)support_write("s", "text", 4);
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_EXISTS, "no socket");
    ck_assert_int_eq(access(support_path("s"), F_OK), 0);
}
END_TEST

START_TEST(folders_are_checked)
{
    struct rpc_server_config config = config_of("open/s");
    struct echo echo;

    assert_fails(echo_try_open(&echo, &config, &err), STATUS_NOT_FOUND, "/open'");
    assert_fails(call_unary(&config.listen, 300), STATUS_NOT_FOUND, "/open'");
    ck_assert_int_eq(mkdir(support_path("open"), 0700), 0);
    ck_assert_int_eq(chmod(support_path("open"), 01777), 0);
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_CONFIG, "mode 1777");
    assert_fails(call_unary(&config.listen, 300), STATUS_CONFIG, "other users may write");
    ck_assert_int_eq(chmod(support_path("open"), 0755), 0);
    echo_open_with(&echo, &config);
    assert_ok(call_unary(&config.listen, DEADLINE_MS));
    echo_close(&echo, DEADLINE_MS);
    (void)support_write("file", "text", 4);
    config = config_of("file/s");
    ck_assert(echo_try_open(&echo, &config, &err) != STATUS_OK);
    ck_assert_ptr_nonnull(strstr(err.text, "/file'"));
}
END_TEST

START_TEST(foreign_folder_is_refused)
{
    struct rpc_server_config config = config_of("foreign/s");
    struct echo echo;

    if (geteuid() != 0) {
        (void)printf("foreign_folder_is_refused: skipped: only root can give a folder away\n");
        return;
    }
    ck_assert_int_eq(mkdir(support_path("foreign"), 0700), 0);
    ck_assert_int_eq(chown(support_path("foreign"), 65534, 65534), 0);
    assert_fails(echo_try_open(&echo, &config, &err), STATUS_CONFIG, "belongs to user 65534");
    assert_fails(call_unary(&config.listen, 300), STATUS_CONFIG, "belongs to user 65534");
}
END_TEST

/* Lock files that are removed while a process waits for them: one holder at any time. */
START_TEST(one_holder_at_any_time)
{
    enum { PROCESSES = 4, TURNS = 300 };
    const char *path = support_path("s"), *counter = support_path("counter");
    int state;

    for (unsigned i = 0; i < PROCESSES; i++) {
        if (fork() != 0)
            continue;
        for (unsigned turn = 0; turn < TURNS;) {
            struct unix_path claim = {.lock_fd = -1};
            int fd;

            if (unix_path_claim(path, "test", &claim, &err) != STATUS_OK)
                continue;
            fd = open(counter, O_CREAT | O_EXCL, 0600); /* fails when another holds the path too */
            if (fd < 0)
                _exit(1);
            (void)close(fd);
            (void)unlink(counter);
            unix_path_release(&claim);
            turn++;
        }
        _exit(0);
    }
    for (unsigned i = 0; i < PROCESSES; i++) {
        ck_assert_int_gt(wait(&state), 0);
        ck_assert(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("rpc_unix", 100, TEST(round_trip_leaves_no_files),
                       TEST(second_server_is_refused), TEST(killed_server_is_replaced),
                       TEST(paths_of_other_programs_are_kept), TEST(folders_are_checked),
                       TEST(foreign_folder_is_refused), TEST(one_holder_at_any_time));
}
