/*
 * nccl_none: the module where NCCL's headers were missing.
 */
#include "common/collective/library/nccl.h"

extern nccl_module_fn sparring_cuda_collective;

__attribute__((visibility("default"))) const struct nccl_ops *sparring_cuda_collective(void)
{
    return NULL;
}
