/*
 * MPI datatypes, reductions and errors.  MPI operations of our own call one reduction function,
 * which is kept in a static because MPI passes no user pointer; it is set before the first
 * operation runs.
 */
#include "common/collective/library/mpi/mpi_types.h"

#define TYPE_PIECE ((size_t)1 << 20) /* bytes of which large types are made */

static library_reduce_fn *reduce_fn; /* of own_operations; set before the first of them runs */

enum status mpi_status(int code, const char *what, struct error *err)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;

    if (code == MPI_SUCCESS)
        return STATUS_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        length = 0;
    return error_set(err, STATUS_PEER_LOST, "mpi, %s: %.*s", what, length, text);
}

void mpi_set_reduce(library_reduce_fn *reduce)
{
    reduce_fn = reduce;
}

enum status mpi_block_open(size_t bytes, struct mpi_block *ret, struct error *err)
{
    size_t pieces = bytes / TYPE_PIECE;
    MPI_Datatype piece = MPI_DATATYPE_NULL;
    int lengths[2] = {(int)pieces, (int)(bytes % TYPE_PIECE)};
    MPI_Aint offsets[2] = {0, (MPI_Aint)(pieces * TYPE_PIECE)};
    MPI_Datatype types[2];
    enum status status;

    *ret = (struct mpi_block){.type = MPI_BYTE, .count = (int)bytes};
    if (bytes <= REDUCE_COUNT_MAX)
        return STATUS_OK;
    status = mpi_status(MPI_Type_contiguous((int)TYPE_PIECE, MPI_BYTE, &piece), "types", err);
    types[0] = piece;
    types[1] = MPI_BYTE;
    if (status == STATUS_OK)
        status = mpi_status(MPI_Type_create_struct(2, lengths, offsets, types, &ret->type), "types",
                            err);
    if (status == STATUS_OK)
        status = mpi_status(MPI_Type_commit(&ret->type), "types", err);
    if (piece != MPI_DATATYPE_NULL)
        (void)MPI_Type_free(&piece);
    ret->is_ours = status == STATUS_OK;
    ret->count = 1;
    return status;
}

void mpi_block_close(struct mpi_block *b)
{
    if (b->is_ours)
        (void)MPI_Type_free(&b->type);
}

/* What MPI has no operation for, or one that differs: 16-bit floats, and NaN in min and max. */
#define OWN_OPERATION(name, type_value, op_value)                                                  \
    static void name(void *input, void *target, int *count, MPI_Datatype *type)                    \
    {                                                                                              \
        static const struct reduction r = {.dtype = type_value, .op = op_value};                   \
                                                                                                   \
        (void)type;                                                                                \
        reduce_fn(&r, target, input, target, (size_t)*count);                                      \
    }

OWN_OPERATION(sum_bfloat16, DTYPE_BFLOAT16, REDUCE_SUM)
OWN_OPERATION(prod_bfloat16, DTYPE_BFLOAT16, REDUCE_PROD)
OWN_OPERATION(min_bfloat16, DTYPE_BFLOAT16, REDUCE_MIN)
OWN_OPERATION(max_bfloat16, DTYPE_BFLOAT16, REDUCE_MAX)
OWN_OPERATION(sum_float16, DTYPE_FLOAT16, REDUCE_SUM)
OWN_OPERATION(prod_float16, DTYPE_FLOAT16, REDUCE_PROD)
OWN_OPERATION(min_float16, DTYPE_FLOAT16, REDUCE_MIN)
OWN_OPERATION(max_float16, DTYPE_FLOAT16, REDUCE_MAX)
OWN_OPERATION(min_float32, DTYPE_FLOAT32, REDUCE_MIN)
OWN_OPERATION(max_float32, DTYPE_FLOAT32, REDUCE_MAX)
OWN_OPERATION(min_float64, DTYPE_FLOAT64, REDUCE_MIN)
OWN_OPERATION(max_float64, DTYPE_FLOAT64, REDUCE_MAX)

static MPI_User_function *const own_operations[DTYPE_COUNT][REDUCE_OP_COUNT] = {
    [DTYPE_BFLOAT16] = {[REDUCE_SUM] = sum_bfloat16,
                        [REDUCE_PROD] = prod_bfloat16,
                        [REDUCE_MIN] = min_bfloat16,
                        [REDUCE_MAX] = max_bfloat16},
    [DTYPE_FLOAT16] = {[REDUCE_SUM] = sum_float16,
                       [REDUCE_PROD] = prod_float16,
                       [REDUCE_MIN] = min_float16,
                       [REDUCE_MAX] = max_float16},
    [DTYPE_FLOAT32] = {[REDUCE_MIN] = min_float32, [REDUCE_MAX] = max_float32},
    [DTYPE_FLOAT64] = {[REDUCE_MIN] = min_float64, [REDUCE_MAX] = max_float64},
};

MPI_Datatype mpi_type_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_FLOAT32:
        return MPI_FLOAT;
    case DTYPE_FLOAT64:
        return MPI_DOUBLE;
    case DTYPE_INT32:
        return MPI_INT32_T;
    case DTYPE_INT64:
        return MPI_INT64_T;
    default:
        return MPI_UINT16_T; /* its operations are our own */
    }
}

/* Averages and factors come as sums. */
static enum reduce_op plain_op(enum reduce_op op)
{
    return op == REDUCE_AVG || op == REDUCE_PREMUL_SUM ? REDUCE_SUM : op;
}

static MPI_Op builtin_of(enum reduce_op op)
{
    switch (op) {
    case REDUCE_PROD:
        return MPI_PROD;
    case REDUCE_MIN:
        return MPI_MIN;
    case REDUCE_MAX:
        return MPI_MAX;
    default:
        return MPI_SUM;
    }
}

enum status mpi_op_open(const struct reduction *r, MPI_Op *ret, bool *ret_is_ours,
                        struct error *err)
{
    enum reduce_op op = plain_op(r->op);
    MPI_User_function *own = own_operations[r->dtype][op];

    *ret_is_ours = own != NULL;
    *ret = builtin_of(op);
    return own ? mpi_status(MPI_Op_create(own, 1, ret), "operations", err) : STATUS_OK;
}
