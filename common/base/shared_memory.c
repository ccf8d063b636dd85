/*
 * memfd_create with F_SEAL_SHRINK: an access past the end of a shrunk file would raise SIGBUS.
 * Pages are zeroed and allocated on first touch.  No locks: a struct belongs to one thread.
 */
#include "common/base/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Map fd; ret owns it on success, it is closed on failure. */
static enum status map_fd(int fd, size_t size, int protection, struct shared_memory *ret,
                          struct error *err)
{
    void *base = mmap(NULL, size, protection, MAP_SHARED, fd, 0);

    if (base == MAP_FAILED) {
        enum status status = error_set(
            err, STATUS_NO_MEMORY, "cannot map %zu bytes of shared memory: %s", size,
            errno == ENOMEM ? "no address space left, or the limit of mappings" : "denied");

        (void)close(fd);
        return status;
    }
    *ret = (struct shared_memory){.base = base, .size = size, .fd = fd};
    return STATUS_OK;
}

/* EFBIG needs an explanation: the file size limit (ulimit -f) applies to a memfd too. */
static enum status size_error(const char *what, size_t size, int error_number, struct error *err)
{
    struct rlimit limit;

    if (error_number != EFBIG || getrlimit(RLIMIT_FSIZE, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY)
        return error_set_errno(err, error_number, "cannot size shared memory for '%s' to %zu bytes",
                               what, size);
    return error_set(err, STATUS_NO_MEMORY,
                     "cannot size shared memory for '%s' to %zu bytes: the limit on the size of "
                     "files (ulimit -f), here %ju bytes, holds for it too",
                     what, size, (uintmax_t)limit.rlim_cur);
}

/* An anonymous file of `size` bytes that cannot shrink. */
static enum status create_memfd(size_t size, const char *what, int *ret_fd, struct error *err)
{
    int fd = memfd_create(what, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd < 0)
        return error_set_errno(err, errno, "cannot make shared memory for '%s'", what);
    if (ftruncate(fd, (off_t)size) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
        enum status status = size_error(what, size, errno, err);

        (void)close(fd);
        return status;
    }
    *ret_fd = fd;
    return STATUS_OK;
}

enum status shared_memory_open(size_t size, const char *what, struct shared_memory *ret,
                               struct error *err)
{
    size_t page = page_size();
    int fd = -1;
    enum status status;

    if (size > (size_t)INT64_MAX - page)
        return error_set(err, STATUS_NO_MEMORY, "cannot share %zu bytes for '%s'", size, what);
    size = size == 0 ? page : (size + page - 1) / page * page;
    status = create_memfd(size, what, &fd, err);
    return status == STATUS_OK ? map_fd(fd, size, PROT_READ | PROT_WRITE, ret, err) : status;
}

enum status shared_memory_renew(struct shared_memory *m, const char *what, struct error *err)
{
    struct shared_memory next = SHARED_MEMORY_NONE;
    enum status status = shared_memory_open(m->size, what, &next, err);

    if (status != STATUS_OK || !next.base)
        return status;
    memcpy(next.base, m->base, m->size);
    if (mremap(next.base, m->size, m->size, MREMAP_MAYMOVE | MREMAP_FIXED, m->base) == MAP_FAILED) {
        status = error_set_errno(err, errno, "cannot move the shared memory of '%s'", what);
        shared_memory_release(&next);
        return status;
    }
    (void)close(m->fd);
    m->fd = next.fd;
    return STATUS_OK;
}

static enum status map_sealed_fd(int fd, size_t size, int protection, struct shared_memory *ret,
                                 struct error *err)
{
    size_t page = page_size();
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat info;

    size = size == 0 ? page : (size + page - 1) / page * page;
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &info) != 0 || info.st_size < 0 ||
        (uint64_t)info.st_size < size) {
        (void)close(fd);
        return error_set(err, STATUS_PROTOCOL,
                         "a peer's descriptor is no sealed memory of %zu bytes", size);
    }
    return map_fd(fd, size, protection, ret, err);
}

enum status shared_memory_map(int fd, size_t size, struct shared_memory *ret, struct error *err)
{
    return map_sealed_fd(fd, size, PROT_READ | PROT_WRITE, ret, err);
}

enum status shared_memory_map_read_only(int fd, size_t size, struct shared_memory *ret,
                                        struct error *err)
{
    return map_sealed_fd(fd, size, PROT_READ, ret, err);
}

void shared_memory_release(struct shared_memory *m)
{
    if (m->base)
        (void)munmap(m->base, m->size);
    if (m->fd >= 0)
        (void)close(m->fd);
    *m = SHARED_MEMORY_NONE;
}
