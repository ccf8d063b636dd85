/*
 * module: finds and loads a Sparring shared library whose dependencies a host may lack (CUDA,
 * NCCL).
 *
 * Search order: the module's environment variable; the executable's folder; the sibling folder
 * "bin" (tests); the library folder relative to the executable (a relocated installation); the
 * configured library folder.  The first existing file is used; a path from the variable must load.
 * A module is never unloaded, because CUDA's libraries do not support it.
 */
#ifndef SPARRING_COMMON_BASE_MODULE_H
#define SPARRING_COMMON_BASE_MODULE_H

#include "common/base/error.h"

#include <stdbool.h>

struct module_spec {
    const char *file;        /* "sparring_cuda.so" */
    const char *variable;    /* "SPARRING_CUDA_MODULE": a path that is tried first */
    const char *what;        /* "the CUDA module": for error texts */
    const char *driver;      /* library that the module requires, checked first; NULL: none */
    const char *driver_what; /* "no NVIDIA driver on this host" */
    bool global;             /* RTLD_GLOBAL: libraries that it loads use its symbols */
};

/* The CUDA module, which holds compute devices and the nccl backend. */
extern const struct module_spec module_cuda;

/* *ret is dlopen's handle.  STATUS_NOT_FOUND or STATUS_IO: no such file (the error lists the paths
 * searched); STATUS_UNAVAILABLE: the driver or the module cannot be loaded. */
enum status module_open(const struct module_spec *place, void **ret, struct error *err);

/* *ret is the symbol's address.  STATUS_CONFIG: the module lacks it, so it is from another build.
 */
enum status module_symbol(const struct module_spec *place, void *module, const char *symbol,
                          void **ret, struct error *err);

#endif
