/*
 * nccl_none: the collective entry point of a module that was built without NCCL's headers: NULL.
 */
#include "common/collective/library/nccl.h"

extern nccl_module_fn sparring_cuda_collective;

__attribute__((visibility("default"))) const struct nccl_ops *sparring_cuda_collective(void)
{
    return NULL;
}
