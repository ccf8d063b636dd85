/*
 * Names of the reductions; the arithmetic is in reduce.c.  Constant data.
 */
#include "common/tensor/reduce.h"

#include <string.h>

static const char *const names[REDUCE_OP_COUNT] = {
    [REDUCE_SUM] = "sum", [REDUCE_AVG] = "avg", [REDUCE_PROD] = "prod",
    [REDUCE_MIN] = "min", [REDUCE_MAX] = "max", [REDUCE_PREMUL_SUM] = "premul_sum",
};

const char *reduce_op_name(enum reduce_op op)
{
    return (unsigned)op < REDUCE_OP_COUNT ? names[op] : "?";
}

bool reduce_op_parse(const char *text, enum reduce_op *ret)
{
    for (unsigned i = 0; i < REDUCE_OP_COUNT; i++) {
        if (strcmp(names[i], text) == 0) {
            *ret = (enum reduce_op)i;
            return true;
        }
    }
    return false;
}
