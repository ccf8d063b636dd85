/*
 * emulator_nccl: a stand-in for NCCL between processes of one host, over memory that they share.
 *
 * emulator_nccl.cc has the communicators, which never block; emulator_nccl_calls.cc the calls,
 * their groups, and the checks for what NCCL refuses.  emulator_nccl_work.cc moves the bytes:
 * operations that a stream retries until the other ranks have done their part.
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
constexpr size_t AREA_BYTES = 256 * 1024; /* a rank's piece of a collective */
constexpr size_t PAIR_BYTES = 64 * 1024;  /* a piece of what one rank sends another */

/* What a rank publishes to all others; in shared memory, zero at first. */
struct rank_part {
    std::atomic<int> pid; /* 0: not here yet */
    int version;
    unsigned char gpu[16];
    uint64_t host; /* hash of the host, or of NCCL_HOSTID */
    std::atomic<bool> finalized;
    std::atomic<uint64_t> published; /* pieces of collectives that this rank has given */
    std::atomic<uint64_t> consumed;  /* pieces of all ranks that it has taken */
    uint64_t signature;              /* of the operation that the last piece is part of */
};

/* One direction between two ranks. */
struct pair_part {
    std::atomic<uint64_t> written, read; /* pieces */
    uint64_t signature;
    unsigned char bytes[PAIR_BYTES];
};

/* The memory of one communicator: the parts of n ranks, their areas, n * n pairs. */
struct shared {
    int ranks;
    void *base;
    size_t size;

    static size_t size_of(int ranks);
    rank_part &rank(int r) const;
    unsigned char *area(int r) const;
    pair_part &pair(int from, int to) const;
};

enum class kind { all_reduce, reduce, reduce_scatter, broadcast, all_gather, send, recv };

/* A reduction: of ncclRedOp_t's own, or a user's with a factor. */
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
    struct shared memory;
    int rank, ranks, device;
    bool crosses_hosts;                /* ranks are on hosts of their own: deaths are seen */
    std::vector<int> watched;          /* pidfds by rank */
    std::atomic<bool> aborted;         /* work on streams ends where it is */
    std::atomic<unsigned> outstanding; /* launches whose work has not ended */
    uint64_t pieces;                   /* of collectives so far */
    ~comm();
};

size_t type_size(ncclDataType_t type);

/* The work of a group of calls on its stream: collectives in their order, then sends and receives
 * concurrently.  Never blocks; true: has ended. */
std::function<bool()> launch(const std::shared_ptr<comm> &c, std::vector<operation> operations);

enum stage { CONNECTING, READY, LAUNCHING, ENDING, ENDED, BROKEN };

/* emulator_nccl.cc; all calls are under one lock. */
typedef std::lock_guard<std::recursive_mutex> guard;
extern std::recursive_mutex lock;
extern thread_local int depth;                /* of groups */
extern thread_local ncclResult_t group_error; /* of the group that is open: the first */

const struct cuda_emulator_services *services();
ncclResult_t refuse(ncclResult_t result, const char *why); /* returns result */
unsigned some_questions();

ncclResult_t check_ready(ncclComm_t n);
ncclResult_t enqueue(ncclComm_t n); /* what is pending, on its stream */

} // namespace emulated_nccl

struct ncclComm {
    std::shared_ptr<emulated_nccl::comm> c;
    enum emulated_nccl::stage stage;
    ncclResult_t state;
    unsigned questions; /* that will still be answered with ncclInProgress */
    int fd;             /* the memory while connecting */
    std::vector<emulated_nccl::operation> pending; /* of the group that is being launched */
    std::map<int, emulated_nccl::reduction> ops;   /* made by the user */
    std::map<int, ncclDataType_t> op_types;
    int next_op;
    std::set<void *> registered;
};

#endif
