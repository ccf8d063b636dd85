/*
 * Memory that is shared by passing its descriptor, and leaves no files behind.
 */
#include "tests/support/support.h"

#include "common/base/shared_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(is_zeroed_and_rounded_up)
{
    struct error err = {0};
    struct shared_memory m = SHARED_MEMORY_NONE;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    assert_ok(shared_memory_open(page + 1, "test", &m, &err));
    ck_assert_uint_eq(m.size, 2 * page);
    ck_assert_uint_eq((size_t)m.base % page, 0);
    for (size_t i = 0; i < m.size; i++)
        ck_assert_uint_eq(((unsigned char *)m.base)[i], 0);
    shared_memory_release(&m);
    ck_assert(!m.base && m.fd == -1);
    shared_memory_release(&m);
    assert_ok(shared_memory_open(0, "test", &m, &err));
    ck_assert_uint_eq(m.size, page);
    shared_memory_release(&m);
    assert_fails(shared_memory_open(SIZE_MAX, "huge", &m, &err), STATUS_NO_MEMORY, "huge");
}
END_TEST

/* A process with the descriptor sees the same bytes, also after the creator has ended. */
START_TEST(outlives_its_killed_creator)
{
    struct error err = {0};
    struct shared_memory m = SHARED_MEMORY_NONE;
    int status;
    pid_t pid;

    assert_ok(shared_memory_open(100, "test", &m, &err));
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        struct shared_memory mine = SHARED_MEMORY_NONE;

        if (shared_memory_map(dup(m.fd), 100, &mine, NULL) != STATUS_OK || mine.base == m.base)
            _exit(1);
        memcpy(mine.base, "written", 8);
        (void)kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ck_assert_str_eq(m.base, "written");
    shared_memory_release(&m);
}
END_TEST

START_TEST(cannot_be_shrunk)
{
    struct error err = {0};
    struct shared_memory m = SHARED_MEMORY_NONE;

    assert_ok(shared_memory_open(10000, "test", &m, &err));
    ck_assert_int_ne(ftruncate(m.fd, 0), 0);
    shared_memory_release(&m);
}
END_TEST

/* Other descriptors that a peer could send; each is closed in every case. */
START_TEST(unsealed_memory_fails)
{
    struct error err = {0};
    struct shared_memory m = SHARED_MEMORY_NONE;
    struct shared_memory small = SHARED_MEMORY_NONE;
    int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int file = open(support_write("file", "text", 4), O_RDWR | O_CLOEXEC);

    ck_assert_int_ge(plain, 0);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(ftruncate(plain, 1 << 20), 0);
    assert_fails(shared_memory_map(plain, 100, &m, &err), STATUS_PROTOCOL, "no sealed memory");
    ck_assert_int_eq(fcntl(plain, F_GETFD), -1);
    assert_fails(shared_memory_map(file, 4, &m, &err), STATUS_PROTOCOL, "no sealed memory");
    ck_assert_int_eq(fcntl(file, F_GETFD), -1);
    assert_fails(shared_memory_map(-1, 4, &m, &err), STATUS_PROTOCOL, "no sealed memory");
    assert_ok(shared_memory_open(100, "small", &small, &err));
    assert_fails(shared_memory_map(dup(small.fd), small.size + 1, &m, &err), STATUS_PROTOCOL,
                 "no sealed memory");
    shared_memory_release(&small);
    ck_assert(!m.base && m.fd == -1);
}
END_TEST

/* A peer that keeps the old descriptor writes into the old memory only. */
START_TEST(renewed_memory_is_not_shared)
{
    struct error err = {0};
    struct shared_memory m = SHARED_MEMORY_NONE;
    struct shared_memory peer = SHARED_MEMORY_NONE;
    const void *base;

    assert_ok(shared_memory_open(10000, "test", &m, &err));
    assert_ok(shared_memory_map(dup(m.fd), m.size, &peer, &err));
    base = m.base;
    memset(peer.base, 1, m.size);
    assert_ok(shared_memory_renew(&m, "test", &err));
    ck_assert_ptr_eq(m.base, base);
    memset(peer.base, 2, m.size);
    for (size_t i = 0; i < m.size; i++)
        ck_assert_int_eq(((const char *)m.base)[i], 1);
    shared_memory_release(&peer);
    assert_ok(shared_memory_map(dup(m.fd), m.size, &peer, &err));
    memset(peer.base, 3, m.size);
    ck_assert_int_eq(((const char *)m.base)[m.size - 1], 3);
    shared_memory_release(&peer);
    shared_memory_release(&m);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("shared_memory", 0, TEST(is_zeroed_and_rounded_up),
                       TEST(outlives_its_killed_creator), TEST(cannot_be_shrunk),
                       TEST(unsealed_memory_fails), TEST(renewed_memory_is_not_shared));
}
