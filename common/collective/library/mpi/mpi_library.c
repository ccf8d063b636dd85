/*
 * sparring_mpi.so: the calls of MPI behind the library table, in a module of its own, so that no
 * program needs libmpi to start.
 *
 * MPI is initialised when the first group opens and finalised when the process exits in order; a
 * process that fails leaves MPI as it is, and mpirun then ends the job.  A group is a communicator
 * of its members, made by them alone.  Counts beyond INT_MAX go as one element of a large datatype,
 * or in pieces where elements are reduced.
 *
 * Limits are MPI's: nothing can be cancelled, and the bytes sent are not reported (mpi_bytes).
 */
#include "common/collective/library/mpi/mpi_types.h"

#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define TAG_MASK 0xffffffu /* the standard promises 15 bits, all libraries have 24 */
#define TAG_DATA 0x1000000

struct library {
    MPI_Comm comm;
    unsigned rank, world_size;
};

struct library_transfer {
    unsigned char header[LIBRARY_HEADER_BYTES];
    MPI_Request requests[2]; /* header, data */
};

/* ---- the process ---- */

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_running; /* (process_lock) */
static bool is_broken;  /* (process_lock) a group failed: MPI cannot end in order */

static void finalize(void)
{
    if (is_running && !is_broken)
        (void)MPI_Finalize();
    is_running = false;
}

static enum status initialize(struct error *err)
{
    int provided = MPI_THREAD_SINGLE;
    enum status status =
        mpi_status(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided), "starting", err);

    if (status != STATUS_OK)
        return status;
    is_running = true;
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (atexit(finalize) != 0)
        return error_set(err, STATUS_NO_MEMORY, "mpi: cannot register its end");
    if (provided < MPI_THREAD_MULTIPLE)
        return error_set(err, STATUS_CONFIG,
                         "this MPI library gives thread level %d, the mpi backend needs %d "
                         "(MPI_THREAD_MULTIPLE)",
                         provided, MPI_THREAD_MULTIPLE);
    return STATUS_OK;
}

static enum status ensure_running(struct error *err)
{
    int is_finalized = 0;
    enum status status = STATUS_OK;

    (void)pthread_mutex_lock(&process_lock);
    (void)MPI_Finalized(&is_finalized);
    if (is_finalized)
        status = error_set(err, STATUS_INVALID, "mpi has ended in this process already");
    else if (!is_running)
        status = initialize(err);
    (void)pthread_mutex_unlock(&process_lock);
    return status;
}

#define HOW_TO_START                                                                               \
    "start the ranks by 'sparring launch --backend mpi --nproc-per-node N -- PROGRAM ...' or by "  \
    "'mpirun -n N PROGRAM ...'"

static enum status mpi_check(unsigned rank, unsigned world_size, struct error *err)
{
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
    bool is_launched = false;

    (void)rank;
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        is_launched = is_launched || getenv(marks[i]) != NULL;
    if (world_size > 1 && !is_launched)
        return error_set(err, STATUS_CONFIG,
                         "the mpi backend works under mpirun only, and this process was not "
                         "started by it: " HOW_TO_START);
    return STATUS_OK;
}

/* ---- groups ---- */

static enum status make_comm(struct library *l, const struct library_config *config,
                             const int *world_ranks, struct error *err)
{
    MPI_Group world = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;
    enum status status = mpi_status(MPI_Comm_group(MPI_COMM_WORLD, &world), "groups", err);

    if (status == STATUS_OK)
        status = mpi_status(MPI_Group_incl(world, (int)config->world_size, world_ranks, &members),
                            "groups", err);
    if (status == STATUS_OK) /* collective over the members only */
        status = mpi_status(
            MPI_Comm_create_group(MPI_COMM_WORLD, members, (int)(config->group & 0x7fff), &l->comm),
            "making a communicator", err);
    if (status == STATUS_OK)
        (void)MPI_Comm_set_errhandler(l->comm, MPI_ERRORS_RETURN);
    if (members != MPI_GROUP_NULL)
        (void)MPI_Group_free(&members);
    if (world != MPI_GROUP_NULL)
        (void)MPI_Group_free(&world);
    return status;
}

static enum status check_worlds(const struct library_config *config, const int *world_ranks,
                                int size, struct error *err)
{
    for (unsigned r = 0; r < config->world_size; r++)
        for (unsigned s = 0; s < r; s++)
            if (world_ranks[r] == world_ranks[s])
                return error_set(err, STATUS_CONFIG,
                                 "ranks %u and %u are both rank %d of an MPI world of %d, so they "
                                 "were not started together: " HOW_TO_START,
                                 config->members[s], config->members[r], world_ranks[r], size);
    return STATUS_OK;
}

static enum status mpi_open(const struct library_config *config, struct library **ret,
                            struct error *err)
{
    struct library *l;
    int *world_ranks;
    int mine = 0;
    int size = 0;
    enum status status = ensure_running(err);

    if (status != STATUS_OK)
        return status;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &size);
    l = calloc(1, sizeof(*l));
    world_ranks = calloc(config->world_size, sizeof(*world_ranks));
    if (!l || !world_ranks) {
        free(world_ranks);
        free(l);
        return error_set(err, STATUS_NO_MEMORY, "no memory for an MPI group");
    }
    status = config->exchange(config->argument, "mpi", &mine, sizeof(mine), world_ranks, err);
    if (status == STATUS_OK)
        status = check_worlds(config, world_ranks, size, err);
    if (status == STATUS_OK)
        status = make_comm(l, config, world_ranks, err);
    free(world_ranks);
    if (status != STATUS_OK) {
        free(l);
        return status;
    }
    mpi_set_reduce(config->reduce);
    l->rank = config->rank;
    l->world_size = config->world_size;
    *ret = l;
    return STATUS_OK;
}

static void mpi_close(struct library *l, bool in_order)
{
    (void)pthread_mutex_lock(&process_lock);
    is_broken = is_broken || !in_order;
    (void)pthread_mutex_unlock(&process_lock);
    if (in_order)
        (void)MPI_Comm_free(&l->comm);
    free(l);
}

/* ---- collectives ---- */

static int reduce_piece(struct library *l, void *data, size_t count, MPI_Datatype type, MPI_Op op,
                        int root)
{
    bool is_root = root == (int)l->rank;

    if (root < 0)
        return MPI_Allreduce(MPI_IN_PLACE, data, (int)count, type, op, l->comm);
    return MPI_Reduce(is_root ? MPI_IN_PLACE : data, is_root ? data : NULL, (int)count, type, op,
                      root, l->comm);
}

/* root < 0: all of them. */
static enum status reduce_to(struct library *l, void *data, size_t count, const struct reduction *r,
                             int root, struct error *err)
{
    size_t element = dtype_size(r->dtype);
    MPI_Op op;
    bool is_ours;
    enum status status = mpi_op_open(r, &op, &is_ours, err);

    for (size_t from = 0; from < count && status == STATUS_OK; from += REDUCE_COUNT_MAX) {
        size_t piece = count - from < REDUCE_COUNT_MAX ? count - from : REDUCE_COUNT_MAX;

        status = mpi_status(
            reduce_piece(l, (char *)data + from * element, piece, mpi_type_of(r->dtype), op, root),
            root < 0 ? "all_reduce" : "reduce", err);
    }
    if (is_ours)
        (void)MPI_Op_free(&op);
    return status;
}

static enum status mpi_all_reduce(struct library *l, void *data, size_t count,
                                  const struct reduction *r, struct error *err)
{
    return reduce_to(l, data, count, r, -1, err);
}

static enum status mpi_reduce(struct library *l, void *data, size_t count,
                              const struct reduction *r, unsigned root, struct error *err)
{
    return reduce_to(l, data, count, r, (int)root, err);
}

static enum status mpi_broadcast(struct library *l, void *data, size_t bytes, unsigned root,
                                 struct error *err)
{
    struct mpi_block b;
    enum status status = mpi_block_open(bytes, &b, err);

    if (status == STATUS_OK)
        status = mpi_status(MPI_Bcast(data, b.count, b.type, (int)root, l->comm), "broadcast", err);
    mpi_block_close(&b);
    return status;
}

static enum status mpi_all_gather(struct library *l, const void *mine, size_t bytes, void *all,
                                  struct error *err)
{
    bool in_place = mine == (char *)all + l->rank * bytes;
    struct mpi_block b;
    enum status status = mpi_block_open(bytes, &b, err);

    if (status == STATUS_OK)
        status = mpi_status(MPI_Allgather(in_place ? MPI_IN_PLACE : mine, b.count, b.type, all,
                                          b.count, b.type, l->comm),
                            "all_gather", err);
    mpi_block_close(&b);
    return status;
}

static enum status mpi_gather(struct library *l, const void *mine, size_t bytes, void *all,
                              unsigned root, struct error *err)
{
    bool in_place = l->rank == root && mine == (char *)all + l->rank * bytes;
    struct mpi_block b;
    enum status status = mpi_block_open(bytes, &b, err);

    if (status == STATUS_OK)
        status = mpi_status(MPI_Gather(in_place ? MPI_IN_PLACE : mine, b.count, b.type, all,
                                       b.count, b.type, (int)root, l->comm),
                            "gather", err);
    mpi_block_close(&b);
    return status;
}

static enum status mpi_scatter(struct library *l, const void *all, size_t bytes, void *mine,
                               unsigned root, struct error *err)
{
    bool in_place = l->rank == root && mine == (const char *)all + l->rank * bytes;
    struct mpi_block b;
    enum status status = mpi_block_open(bytes, &b, err);

    if (status == STATUS_OK)
        status = mpi_status(MPI_Scatter(all, b.count, b.type, in_place ? MPI_IN_PLACE : mine,
                                        b.count, b.type, (int)root, l->comm),
                            "scatter", err);
    mpi_block_close(&b);
    return status;
}

static enum status mpi_all_to_all(struct library *l, const void *input, size_t bytes, void *output,
                                  struct error *err)
{
    struct mpi_block b;
    enum status status = mpi_block_open(bytes, &b, err);

    if (status == STATUS_OK)
        status = mpi_status(MPI_Alltoall(input, b.count, b.type, output, b.count, b.type, l->comm),
                            "all_to_all", err);
    mpi_block_close(&b);
    return status;
}

static enum status mpi_barrier(struct library *l, struct error *err)
{
    return mpi_status(MPI_Barrier(l->comm), "barrier", err);
}

/* ---- transfers ----
 * Requests live in a struct library_transfer from the call that starts them to the one that awaits
 * them; the analyzer looks for both within one function. */

/* NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker) */

static int header_tag(const struct library_transfer_id *id)
{
    return (int)(id->number & TAG_MASK);
}

static int data_tag(const struct library_transfer_id *id)
{
    return TAG_DATA | (int)(id->key & TAG_MASK);
}

static struct library_transfer *new_transfer(struct error *err)
{
    struct library_transfer *t = calloc(1, sizeof(*t));

    if (!t)
        (void)error_set(err, STATUS_NO_MEMORY, "no memory for a transfer");
    else
        t->requests[0] = t->requests[1] = MPI_REQUEST_NULL;
    return t;
}

static enum status mpi_send(struct library *l, const struct library_transfer_id *id,
                            const void *header, const void *data, size_t bytes,
                            struct library_transfer **ret, struct error *err)
{
    struct library_transfer *t = new_transfer(err);
    struct mpi_block b;
    enum status status;

    if (!t)
        return STATUS_NO_MEMORY;
    *ret = t;
    memcpy(t->header, header, sizeof(t->header));
    status = mpi_status(MPI_Isend(t->header, LIBRARY_HEADER_BYTES, MPI_BYTE, (int)id->peer,
                                  header_tag(id), l->comm, &t->requests[0]),
                        "send", err);
    if (status != STATUS_OK || bytes == 0)
        return status;
    status = mpi_block_open(bytes, &b, err);
    if (status == STATUS_OK)
        status = mpi_status(
            MPI_Isend(data, b.count, b.type, (int)id->peer, data_tag(id), l->comm, &t->requests[1]),
            "send", err);
    mpi_block_close(&b); /* which MPI keeps until the transfer has ended */
    return status;
}

static enum status mpi_recv(struct library *l, const struct library_transfer_id *id, void *data,
                            size_t bytes, struct library_transfer **ret, struct error *err)
{
    struct library_transfer *t = new_transfer(err);
    struct mpi_block b;
    enum status status;

    if (!t)
        return STATUS_NO_MEMORY;
    *ret = t;
    status = mpi_status(MPI_Irecv(t->header, LIBRARY_HEADER_BYTES, MPI_BYTE, (int)id->peer,
                                  header_tag(id), l->comm, &t->requests[0]),
                        "recv", err);
    if (status != STATUS_OK || bytes == 0)
        return status;
    status = mpi_block_open(bytes, &b, err);
    if (status == STATUS_OK)
        status = mpi_status(
            MPI_Irecv(data, b.count, b.type, (int)id->peer, data_tag(id), l->comm, &t->requests[1]),
            "recv", err);
    mpi_block_close(&b);
    return status;
}

static enum status mpi_await_header(struct library *l, struct library_transfer *t, void *header,
                                    struct error *err)
{
    enum status status = mpi_status(MPI_Wait(&t->requests[0], MPI_STATUS_IGNORE), "recv", err);

    (void)l;
    if (status == STATUS_OK)
        memcpy(header, t->header, sizeof(t->header));
    return status;
}

static enum status mpi_await(struct library *l, struct library_transfer *t, struct error *err)
{
    (void)l;
    return mpi_status(MPI_Waitall(2, t->requests, MPI_STATUSES_IGNORE), "transfer", err);
}

/* What is not done is cut off: the group is dead, and MPI may still write to it, so it leaks. */
static void mpi_release_transfer(struct library *l, struct library_transfer *t)
{
    (void)l;
    if (t->requests[0] == MPI_REQUEST_NULL && t->requests[1] == MPI_REQUEST_NULL)
        free(t);
}
/* NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker) */

/* ---- counting ---- */

/* MPI reports neither its algorithm nor its bytes.  Counted is the minimum that a rank must send
 * and receive; for rooted calls, that of a direct exchange. */
static void mpi_bytes(enum collective_call call, unsigned rank, unsigned n, uint64_t bytes,
                      size_t element_bytes, unsigned root, uint64_t *ret_tx, uint64_t *ret_rx)
{
    uint64_t as_root = (n - 1) * bytes;

    (void)element_bytes;
    *ret_tx = *ret_rx = 0;
    switch (call) {
    case COLLECTIVE_ALL_REDUCE:
        *ret_tx = *ret_rx = 2 * bytes / n * (n - 1);
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_ALL_TO_ALL:
        *ret_tx = *ret_rx = as_root;
        break;
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_GATHER:
        *(rank == root ? ret_rx : ret_tx) = rank == root ? as_root : bytes;
        break;
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SCATTER:
        *(rank == root ? ret_tx : ret_rx) = rank == root ? as_root : bytes;
        break;
    default:
        break;
    }
}

const struct library_ops *sparring_collective_library(void);

__attribute__((visibility("default"))) const struct library_ops *sparring_collective_library(void)
{
    static const struct library_ops ops = {
        .name = "mpi",
        .version = LIBRARY_VERSION,
        .check = mpi_check,
        .open = mpi_open,
        .all_reduce = mpi_all_reduce,
        .reduce = mpi_reduce,
        .broadcast = mpi_broadcast,
        .all_gather = mpi_all_gather,
        .gather = mpi_gather,
        .scatter = mpi_scatter,
        .all_to_all = mpi_all_to_all,
        .barrier = mpi_barrier,
        .send = mpi_send,
        .recv = mpi_recv,
        .await_header = mpi_await_header,
        .await = mpi_await,
        .release_transfer = mpi_release_transfer,
        .bytes = mpi_bytes,
        .close = mpi_close,
    };

    return &ops;
}
