/*
 * The mpi backend: finds sparring_mpi.so, which holds MPI, and checks that mpirun started the
 * ranks (common/base/module.h says where it is looked for; SPARRING_MPI_MODULE may name it).
 *
 * MPI cannot cancel anything: `interrupt` is absent, so a process whose group has lost a rank, or
 * is past its time-out, ends with the error's text and exit code (collective_blocking.h), and
 * mpirun ends the job.
 */
#include "common/base/module.h"
#include "common/collective/library/library_backend.h"

static const struct module_spec module_mpi = {
    .file = "sparring_mpi.so",
    .variable = "SPARRING_MPI_MODULE",
    .what = "the mpi backend's module",
    .global = true, /* MPI's own modules need its symbols */
};

static enum status load_mpi_module(const struct library_ops **ret, struct error *err)
{
    union {
        void *object;
        library_module_fn *function; /* POSIX allows it, ISO C has no cast for it */
    } symbol;
    const struct library_ops *library;
    struct error why = {0};
    void *module;
    enum status status = module_open(&module_mpi, &module, &why);

    if (status != STATUS_OK)
        return error_set(err, STATUS_CONFIG, "%s", why.text);
    status = module_symbol(&module_mpi, module, LIBRARY_MODULE_SYMBOL, &symbol.object, err);
    if (status != STATUS_OK)
        return status;
    library = symbol.function();
    if (library->version != LIBRARY_VERSION)
        return error_set(err, STATUS_CONFIG, "%s is of another build: version %u, not %u",
                         module_mpi.what, library->version, LIBRARY_VERSION);
    *ret = library;
    return STATUS_OK;
}

static enum status mpi_group_check(const struct collective_config *config, struct error *err)
{
    const struct library_ops *library = NULL;
    enum status status = load_mpi_module(&library, err);

    return library ? library->check(config->rank, config->world_size, err) : status;
}

static enum status mpi_group_open(struct collective *group, int64_t deadline_ns, struct error *err)
{
    const struct library_ops *library = NULL;
    enum status status = load_mpi_module(&library, err);

    (void)deadline_ns;
    return library ? library_group_open(group, library, err) : status;
}

const struct collective_ops collective_mpi_ops = {
    .name = "mpi",
    .size = sizeof(struct library_group),
    .blocking = true,
    .unchecked = true,
    .check = mpi_group_check,
    .open = mpi_group_open,
    .run = library_group_run,
    .expected_bytes = library_group_expected_bytes,
    .close = library_group_close,
};
