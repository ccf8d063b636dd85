/*
 * emulator_nccl: emulates NCCL between processes of one host, over shared memory.
 *
 * emulator_nccl.cc has the communicators, which never block; emulator_nccl_calls.cc the calls,
 * their groups, and the checks for what NCCL refuses; emulator_nccl_work.cc the transfers, which a
 * stream retries until the other ranks have done their part.
 */
#ifndef SPARRING_TESTS_CUDA_EMULATOR_NCCL_H
#define SPARRING_TESTS_CUDA_EMULATOR_NCCL_H

#include "tests/support/cuda_emulator/emulator_services.h"

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace emulated_nccl
{

constexpr int RANKS_MAX = 16;
constexpr size_t AREA_BYTES = 256 * 1024; /* of a rank: maximum of a piece of a collective */
constexpr size_t PAIR_BYTES = 64 * 1024;  /* maximum of a piece of a send */

/* State that a rank publishes to all others; in shared memory, initially zero. */
struct rank_part {
    std::atomic<int> pid; /* 0: has not joined yet */
    int version;
    unsigned char gpu[16];
    uint64_t host; /* hash of the host, or of NCCL_HOSTID */
    std::atomic<bool> finalized;
    std::atomic<uint64_t> published; /* pieces of collectives in its area so far */
    std::atomic<uint64_t> consumed;  /* pieces of all ranks that it has read */
    uint64_t signature;              /* of the operation of the last piece */
};

/* One direction between two ranks: at most one piece. */
struct pair_part {
    std::atomic<uint64_t> written, read; /* pieces */
    uint64_t signature;
    unsigned char bytes[PAIR_BYTES];
};

/* The memory of one communicator: rank_part and area of each of n ranks, then n * n pairs. */
struct shared_memory {
    int ranks;
    void *base;
    size_t size;

    static size_t size_of(int ranks);
    rank_part &rank(int r) const;
    unsigned char *area(int r) const;
    pair_part &pair(int from, int to) const;
};

enum class kind { all_reduce, reduce, reduce_scatter, broadcast, all_gather, send, recv };

/* A built-in reduction of ncclRedOp_t, or one of the user with a factor. */
struct reduction {
    ncclRedOp_t op; /* ncclSum ... ncclAvg */
    bool has_factor;
    double factor;
};

struct operation {
    enum kind kind;
    const void *input;
    void *output;
    size_t count;
    ncclDataType_t type;
    struct reduction reduction;
    int root; /* or peer */
    cudaStream_t stream;
};

struct comm {
    struct shared_memory memory;
    int rank, ranks, device;
    bool crosses_hosts;                /* between hosts the death of a rank is detected */
    std::vector<int> watched;          /* pidfds by rank */
    std::atomic<bool> aborted;         /* work on streams ends at once */
    std::atomic<unsigned> outstanding; /* launches whose work has not ended */
    uint64_t pieces;                   /* of collectives so far */
    ~comm();
};

size_t type_size(ncclDataType_t type);

/* The work of a group of calls on its stream: collectives in order, then sends and receives
 * concurrently.  It never blocks, and returns true when it has ended. */
std::function<bool()> make_stream_work(const std::shared_ptr<comm> &c,
                                       std::vector<operation> operations);

enum stage { CONNECTING, READY, LAUNCHING, ENDING, ENDED, BROKEN };

/* emulator_nccl.cc; one lock guards all calls. */
typedef std::lock_guard<std::recursive_mutex> guard;
extern std::recursive_mutex lock;
extern thread_local int depth;                /* of nested groups */
extern thread_local ncclResult_t group_error; /* first error of the open group */

const struct cuda_emulator_services *services();
ncclResult_t refuse(ncclResult_t result, const char *why); /* stores the text, returns result */
unsigned random_pending_queries();

ncclResult_t check_ready(ncclComm_t n);
ncclResult_t enqueue_pending(ncclComm_t n); /* enqueue the pending operations on their stream */

} // namespace emulated_nccl

struct ncclComm {
    std::shared_ptr<emulated_nccl::comm> c;
    enum emulated_nccl::stage stage;
    ncclResult_t state;
    unsigned pending_queries; /* number of queries that still return ncclInProgress */
    int fd;                   /* of the shared memory while connecting */
    std::vector<emulated_nccl::operation> pending; /* operations of the group in launch */
    std::map<int, emulated_nccl::reduction> ops;   /* made by the user */
    std::map<int, ncclDataType_t> op_types;
    int next_op;
    std::set<void *> registered;
};

#endif
