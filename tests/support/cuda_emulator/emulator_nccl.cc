/*
 * emulator_nccl: libnccl.so.2 for the emulated GPU, with the functions that nccl_library.h lists.
 *
 * A communicator is shared memory of its ranks; a unique id names a memfd of the process that made
 * it, so no file is left.  Communicators never block: connect, finalize and every group stay
 * ncclInProgress for some queries, and only then is the work of a group on its stream, which NCCL
 * permits.  The death of a rank of the same host is not detected, and kernels wait for ever;
 * between hosts (NCCL_HOSTID) the connection to a dead rank breaks.  Everything that NCCL's
 * documentation forbids is refused, even where NCCL might accept it: buffers that are not entirely
 * device memory, calls before the previous one has succeeded, destroying a communicator that is not
 * finalized.
 * Locking: one lock for all calls; work on streams uses only its communicator's atomics.
 */
#include "tests/support/cuda_emulator/emulator_nccl.h"

#include "common/tensor/half.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <mutex>
#include <poll.h>
#include <random>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

using namespace emulated_nccl;

#define PENDING_QUERIES_MAX 3 /* that return ncclInProgress */

namespace emulated_nccl
{

std::recursive_mutex lock;
thread_local int depth;
thread_local ncclResult_t group_error;
static thread_local std::string last_error;

ncclResult_t refuse(ncclResult_t result, const char *why)
{
    last_error = why;
    if (depth > 0 && group_error == ncclSuccess)
        group_error = result;
    return result;
}

const struct cuda_emulator_services *services()
{
    static const struct cuda_emulator_services *found;
    const char *path = getenv("SPARRING_CUDA_MODULE");
    void *module = found || !path ? nullptr : dlopen(path, RTLD_NOW | RTLD_NOLOAD);

    if (module) {
        void *symbol = dlsym(module, CUDA_EMULATOR_SERVICES);

        if (symbol)
            found = reinterpret_cast<cuda_emulator_services_fn *>(symbol)();
    }
    if (!found) {
        (void)fprintf(stderr, "this libnccl.so.2 is for the emulated GPU, which "
                              "SPARRING_CUDA_MODULE has to name\n");
        abort();
    }
    return found;
}

unsigned random_pending_queries()
{
    static std::mt19937 random{std::random_device{}()};

    return random() % (PENDING_QUERIES_MAX + 1);
}

ncclResult_t enqueue_pending(ncclComm_t n)
{
    std::map<cudaStream_t, std::vector<operation>> streams;

    for (const operation &o : n->pending)
        streams[o.stream].push_back(o);
    n->pending.clear();
    n->stage = READY;
    if (streams.size() > 1)
        return refuse(ncclInvalidUsage, "the emulator supports one stream per group");
    for (auto &s : streams)
        if (services()->enqueue(s.first, make_stream_work(n->c, std::move(s.second))) !=
            cudaSuccess)
            return refuse(ncclUnhandledCudaError, "putting work on a stream");
    return ncclSuccess;
}

ncclResult_t check_ready(ncclComm_t n)
{
    if (!n)
        return refuse(ncclInvalidArgument, "no communicator");
    if (n->stage != READY || n->state != ncclSuccess)
        return refuse(ncclInvalidArgument, "called before the previous operation has succeeded");
    return ncclSuccess;
}

} // namespace emulated_nccl

/* Content of a unique id; the rest of it is zero. */
struct id_content {
    char magic[16];
    int pid, fd;
    uint64_t number; /* differs from id to id */
};

static const char magic[16] = "emulated nccl";

static uint64_t hash_host()
{
    const char *named = getenv("NCCL_HOSTID");
    char name[256] = "";

    if (!named)
        (void)gethostname(name, sizeof(name) - 1);
    return std::hash<std::string>()(named ? named : name);
}

/* ---- connecting ---- */

static ncclResult_t publish_rank(ncclComm_t n)
{
    rank_part &mine = n->c->memory.rank(n->c->rank);
    struct cudaDeviceProp properties;

    if (services()->get_properties(&properties, n->c->device) != cudaSuccess)
        return refuse(ncclUnhandledCudaError, "cudaGetDeviceProperties");
    memcpy(mine.gpu, properties.uuid.bytes, sizeof(mine.gpu));
    mine.host = hash_host();
    mine.version = NCCL_VERSION_CODE;
    if (mine.pid.exchange(getpid()) != 0)
        return refuse(ncclInvalidUsage, "this rank has connected before");
    return ncclSuccess;
}

/* All ranks have joined: check their GPUs and open their pidfds. */
static ncclResult_t check_ranks(ncclComm_t n)
{
    comm &c = *n->c;

    for (int a = 0; a < c.ranks; a++) {
        rank_part &one = c.memory.rank(a);

        for (int b = a + 1; b < c.ranks; b++) {
            rank_part &other = c.memory.rank(b);

            if (one.host == other.host && memcmp(one.gpu, other.gpu, sizeof(one.gpu)) == 0)
                return refuse(ncclInvalidUsage, "Duplicate GPU detected");
            c.crosses_hosts = c.crosses_hosts || one.host != other.host;
        }
        c.watched.push_back((int)syscall(SYS_pidfd_open, (pid_t)one.pid.load(), 0));
    }
    return ncclSuccess;
}

static ncclResult_t try_connect(ncclComm_t n)
{
    for (int r = 0; r < n->c->ranks; r++)
        if (n->c->memory.rank(r).pid.load() == 0)
            return ncclInProgress;
    (void)close(n->fd);
    n->fd = -1;
    n->stage = READY;
    return check_ranks(n);
}

static ncclResult_t map_memory(ncclComm_t n, const ncclUniqueId &id)
{
    struct shared_memory &memory = n->c->memory;
    struct id_content content;
    char path[64];

    memcpy(&content, &id, sizeof(content));
    if (memcmp(content.magic, magic, sizeof(magic)) != 0)
        return refuse(ncclInvalidArgument, "not a unique id");
    (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", content.pid, content.fd);
    n->fd = content.pid == getpid() ? content.fd : open(path, O_RDWR | O_CLOEXEC);
    if (n->fd < 0)
        return refuse(ncclRemoteError, "the process that made the unique id is gone");
    memory.ranks = n->c->ranks;
    memory.size = shared_memory::size_of(n->c->ranks);
    if (ftruncate(n->fd, (off_t)memory.size) == 0)
        memory.base = mmap(nullptr, memory.size, PROT_READ | PROT_WRITE, MAP_SHARED, n->fd, 0);
    if (!memory.base || memory.base == MAP_FAILED) {
        memory.base = nullptr;
        return refuse(ncclSystemError, "mmap");
    }
    return publish_rank(n);
}

extern "C" ncclResult_t ncclGetVersion(int *ret)
{
    *ret = NCCL_VERSION_CODE;
    return ncclSuccess;
}

extern "C" ncclResult_t ncclGetUniqueId(ncclUniqueId *ret)
{
    static std::atomic<uint64_t> numbers;
    struct id_content content = {};

    memcpy(content.magic, magic, sizeof(magic));
    content.pid = getpid();
    content.fd = memfd_create("emulated nccl", MFD_CLOEXEC);
    content.number = ++numbers;
    if (content.fd < 0)
        return refuse(ncclSystemError, "memfd_create");
    memset(ret, 0, sizeof(*ret));
    memcpy(ret, &content, sizeof(content));
    return ncclSuccess;
}

extern "C" ncclResult_t ncclCommInitRankConfig(ncclComm_t *ret, int ranks, ncclUniqueId id,
                                               int rank, ncclConfig_t *config)
{
    guard g(lock);
    ncclComm_t n;

    if (ranks < 1 || ranks > RANKS_MAX || rank < 0 || rank >= ranks || depth > 0)
        return refuse(ncclInvalidArgument, "ncclCommInitRankConfig: rank, size, or inside a group");
    if (!config || config->size != sizeof(*config) || config->magic != 0xcafebeef ||
        config->blocking != 0)
        return refuse(ncclInvalidArgument, "the emulator requires a non-blocking config");
    n = new ncclComm();
    n->c = std::make_shared<comm>();
    n->c->rank = rank;
    n->c->ranks = ranks;
    n->next_op = ncclNumOps;
    n->pending_queries = random_pending_queries();
    n->fd = -1;
    (void)services()->get_device(&n->c->device);
    n->stage = CONNECTING;
    n->state = map_memory(n, id);
    if (n->state == ncclSuccess)
        n->state = ncclInProgress;
    else
        n->stage = BROKEN;
    *ret = n;
    return n->state;
}

/* ---- progress ---- */

static ncclResult_t try_finalize(ncclComm_t n)
{
    if (n->c->outstanding.load() > 0)
        return ncclInProgress;
    n->c->memory.rank(n->c->rank).finalized.store(true);
    for (int r = 0; r < n->c->ranks; r++)
        if (!n->c->memory.rank(r).finalized.load())
            return ncclInProgress;
    n->stage = ENDED;
    return ncclSuccess;
}

/* True if the process of a rank on another host has ended without ncclCommFinalize. */
static bool has_lost_rank(ncclComm_t n)
{
    comm &c = *n->c;

    for (int r = 0; r < c.ranks && c.crosses_hosts; r++) {
        struct pollfd p = {c.watched[(size_t)r], POLLIN, 0};

        if (r != c.rank && !c.memory.rank(r).finalized.load() && p.fd >= 0 && poll(&p, 1, 0) > 0)
            return true;
    }
    return false;
}

static ncclResult_t advance(ncclComm_t n)
{
    if (n->stage != CONNECTING && n->stage != ENDED && has_lost_rank(n))
        return refuse(ncclRemoteError, "Connection closed by remote peer");
    if (n->stage == READY || n->stage == ENDED)
        return n->state;
    if (n->pending_queries > 0) {
        n->pending_queries--;
        return ncclInProgress;
    }
    switch (n->stage) {
    case CONNECTING:
        return try_connect(n);
    case LAUNCHING:
        return enqueue_pending(n);
    default:
        return try_finalize(n);
    }
}

extern "C" ncclResult_t ncclCommGetAsyncError(ncclComm_t n, ncclResult_t *ret)
{
    guard g(lock);

    if (!n || !ret)
        return refuse(ncclInvalidArgument, "no communicator");
    if (n->stage != BROKEN)
        n->state = advance(n);
    if (n->state != ncclSuccess && n->state != ncclInProgress)
        n->stage = BROKEN;
    *ret = n->state;
    return ncclSuccess;
}

/* ---- finalize, destroy, abort ---- */

extern "C" ncclResult_t ncclCommFinalize(ncclComm_t n)
{
    guard g(lock);
    ncclResult_t result = check_ready(n);

    if (result != ncclSuccess)
        return result;
    n->stage = ENDING;
    n->pending_queries = random_pending_queries();
    return n->state = ncclInProgress;
}

extern "C" ncclResult_t ncclCommDestroy(ncclComm_t n)
{
    guard g(lock);

    if (!n || n->stage != ENDED)
        return refuse(ncclInvalidArgument, "ncclCommDestroy before ncclCommFinalize has succeeded");
    delete n;
    return ncclSuccess;
}

/* In any stage. */
extern "C" ncclResult_t ncclCommAbort(ncclComm_t n)
{
    guard g(lock);

    if (!n)
        return refuse(ncclInvalidArgument, "no communicator");
    n->c->aborted.store(true);
    if (n->fd >= 0)
        (void)close(n->fd);
    delete n;
    return ncclSuccess;
}

/* ---- texts ---- */

extern "C" const char *ncclGetErrorString(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
        return "no error";
    case ncclInvalidArgument:
        return "invalid argument";
    case ncclInvalidUsage:
        return "invalid usage";
    case ncclRemoteError:
        return "remote process exited or there was a network error";
    case ncclInProgress:
        return "NCCL operation in progress";
    default:
        return "unhandled error of the NCCL emulator";
    }
}

extern "C" const char *ncclGetLastError(ncclComm_t n)
{
    (void)n;
    return last_error.c_str();
}
