/*
 * module: find and load a shared library of ours that needs what a host may lack (CUDA, NCCL).
 *
 * Looked for in the variable of the module, beside the executable, in the folder "bin" beside the
 * executable's (tests), in the library folder of an installation that was moved, executable and
 * all, and in that of the installation where it was made, in this order; the first that exists is
 * used, and one named by the variable must work.  A module is never unloaded, because
 * CUDA's libraries do not survive it; there is no state here, dlopen counts references itself.
 */
#ifndef SPARRING_COMMON_BASE_MODULE_H
#define SPARRING_COMMON_BASE_MODULE_H

#include "common/base/error.h"

#include <stdbool.h>

struct module_place {
    const char *file;        /* "sparring_cuda.so" */
    const char *variable;    /* "SPARRING_CUDA_MODULE": a path that comes first */
    const char *what;        /* "the CUDA module": for texts */
    const char *driver;      /* tried first: without it the module cannot load; NULL: none */
    const char *driver_what; /* "no NVIDIA driver on this host" */
    bool global;             /* its symbols serve what it loads itself */
};

/* The CUDA module, which holds compute devices and the nccl backend. */
extern const struct module_place module_cuda;

/* *ret is dlopen's handle.  STATUS_NOT_FOUND, STATUS_IO: no such file, and where it was looked for;
 * STATUS_UNAVAILABLE: the driver or the module cannot be loaded, and why. */
enum status module_open(const struct module_place *place, void **ret, struct error *err);

/* *ret is the symbol's address.  STATUS_CONFIG: not a module of ours. */
enum status module_symbol(const struct module_place *place, void *module, const char *symbol,
                          void **ret, struct error *err);

#endif
