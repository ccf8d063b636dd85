/*
 * cuda_loader: open a GPU through sparring_cuda.so, which common/base/module.h finds and loads.  A
 * module of another version returns an error (CUDA_MODULE_VERSION).
 */
#include "worker/compute/cuda_module.h"

#include "common/base/module.h"

enum status compute_cuda_open(int index, const struct compute_config *config,
                              struct compute **ret_compute, struct error *err)
{
    union {
        void *object;
        cuda_module_open_fn *function; /* POSIX allows this conversion, ISO C has no cast for it */
    } symbol;
    void *module;
    enum status status = module_open(&module_cuda, &module, err);

    if (status == STATUS_OK)
        status = module_symbol(&module_cuda, module, CUDA_MODULE_SYMBOL, &symbol.object, err);
    if (status != STATUS_OK)
        return status;
    return symbol.function(CUDA_MODULE_VERSION, index, config, ret_compute, err);
}
