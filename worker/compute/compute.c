/*
 * compute: selects and opens a device, and forwards memory and transfer calls to its table.  It
 * parses the device's name, opens the CPU or (through the module) a GPU, and checks the precision.
 * The operations are in compute_operations.c.  No state of its own besides struct compute, no
 * locks.
 */
#include "worker/compute/compute.h"

#include "common/base/memory.h"
#include "common/base/parse.h"
#include "worker/compute/compute_ops.h"

#include <stdlib.h>
#include <string.h>

#define DEVICE_INDEX_MAX 1023

/* "cuda" -> -1, "cuda:I" -> I. */
static enum status parse_cuda(const char *device, int *ret_index, struct error *err)
{
    uint64_t index;

    if (strcmp(device, "cuda") == 0) {
        *ret_index = -1;
        return STATUS_OK;
    }
    if (strncmp(device, "cuda:", 5) == 0 && parse_uint64(device + 5, &index) &&
        index <= DEVICE_INDEX_MAX) {
        *ret_index = (int)index;
        return STATUS_OK;
    }
    return error_set(err, STATUS_INVALID,
                     "device '%s': not one of auto, cpu, cuda, cuda:I (I from 0 to %d)", device,
                     DEVICE_INDEX_MAX);
}

static enum status open_cpu(const struct compute_config *config, struct compute **ret_compute,
                            struct error *err)
{
    if (config->precision != PRECISION_FLOAT32)
        return error_set(err, STATUS_UNSUPPORTED, "device cpu: precision %s: it has float32 only",
                         precision_name(config->precision));
    return compute_cpu_open(config->threads, ret_compute, err);
}

/* A GPU if it can be opened, else the CPU with the reason stored. */
static enum status open_auto(const struct compute_config *config, struct compute **ret_compute,
                             struct error *err)
{
    struct error reason = {0};
    struct compute *cpu = NULL;
    enum status status;

    if (compute_cuda_open(-1, config, ret_compute, &reason) == STATUS_OK)
        return STATUS_OK;
    status = open_cpu(config, &cpu, err);
    if (status != STATUS_OK)
        return err ? error_prefix(err, "%s; ", reason.text) : status;
    status = mem_strdup(reason.text, &cpu->fallback_reason, err);
    if (status != STATUS_OK) {
        compute_close(cpu);
        return status;
    }
    *ret_compute = cpu;
    return STATUS_OK;
}

static const char *const precisions[] = {[PRECISION_FLOAT32] = "float32",
                                         [PRECISION_TF32] = "tf32",
                                         [PRECISION_BF16] = "bf16",
                                         [PRECISION_FP16] = "fp16"};

const char *precision_name(enum precision p)
{
    return precisions[p];
}

bool precision_parse(const char *text, enum precision *ret)
{
    for (size_t i = 0; i < sizeof(precisions) / sizeof(precisions[0]); i++) {
        if (strcmp(text, precisions[i]) == 0) {
            *ret = (enum precision)i;
            return true;
        }
    }
    return false;
}

static enum status open_device(const struct compute_config *config, struct compute **ret_compute,
                               struct error *err)
{
    int index = -1;
    enum status status;

    if (strcmp(config->device, "cpu") == 0)
        return open_cpu(config, ret_compute, err);
    if (strcmp(config->device, "auto") == 0)
        return open_auto(config, ret_compute, err);
    status = parse_cuda(config->device, &index, err);
    if (status != STATUS_OK)
        return status;
    status = compute_cuda_open(index, config, ret_compute, err);
    if (status != STATUS_OK)
        (void)error_prefix(err, "device '%s': ", config->device);
    return status;
}

enum status compute_open_config(const struct compute_config *config, struct compute **ret_compute,
                                struct error *err)
{
    enum status status = open_device(config, ret_compute, err);

    if (status == STATUS_OK)
        (*ret_compute)->precision = config->precision;
    return status;
}

enum status compute_open(const char *device, unsigned local_rank, unsigned threads,
                         struct compute **ret_compute, struct error *err)
{
    const struct compute_config config = {
        .device = device, .local_rank = local_rank, .threads = threads};

    return compute_open_config(&config, ret_compute, err);
}

enum precision compute_precision(const struct compute *c)
{
    return c->precision;
}

void compute_close(struct compute *c)
{
    if (!c)
        return;
    free(c->fallback_reason);
    c->ops->close(c);
}

const char *compute_name(const struct compute *c)
{
    return c->ops->describe(c);
}

const char *compute_fallback_reason(const struct compute *c)
{
    return c->fallback_reason ? c->fallback_reason : "";
}

size_t compute_row_stride(const struct compute *c, size_t width)
{
    return c->ops->row_stride ? c->ops->row_stride(c, width) : width;
}

bool compute_is_host(const struct compute *c)
{
    return c->ops->is_host;
}

bool compute_channels_last(const struct compute *c)
{
    return c->ops->channels_last;
}

enum status compute_alloc(struct compute *c, size_t count, const char *what, float **ret,
                          struct error *err)
{
    return c->ops->alloc(c, count, what, ret, err);
}

enum status compute_alloc_values(struct compute *c, size_t count, const char *what, void **ret,
                                 struct error *err)
{
    return c->ops->alloc_values(c, count, what, ret, err);
}

void compute_free(struct compute *c, void *memory)
{
    if (memory)
        c->ops->free(c, memory);
}

uint64_t compute_peak_bytes(const struct compute *c)
{
    return c->ops->peak_bytes ? c->ops->peak_bytes(c) : 0;
}

struct compute_traffic compute_get_traffic(const struct compute *c)
{
    return c->ops->traffic ? c->ops->traffic(c) : (struct compute_traffic){0};
}

enum status compute_alloc_host(struct compute *c, size_t count, float **ret, struct error *err)
{
    return c->ops->alloc_host(c, count, ret, err);
}

void compute_free_host(struct compute *c, float *memory)
{
    if (memory)
        c->ops->free_host(c, memory);
}

enum status compute_upload(struct compute *c, float *device, const float *host, size_t count,
                           struct error *err)
{
    return c->ops->upload(c, device, host, count, err);
}

enum status compute_copy(struct compute *c, float *to, const float *from, size_t count,
                         struct error *err)
{
    return c->ops->copy(c, to, from, count, err);
}

enum status compute_upload_ahead(struct compute *c, const float *host, size_t count,
                                 struct error *err)
{
    return c->ops->upload_ahead ? c->ops->upload_ahead(c, host, count, err) : STATUS_OK;
}

enum status compute_upload_ahead_cancel(struct compute *c, struct error *err)
{
    return c->ops->upload_ahead_cancel ? c->ops->upload_ahead_cancel(c, err) : STATUS_OK;
}

int64_t compute_upload_ahead_wait_ns(struct compute *c)
{
    return c->ops->upload_ahead_wait_ns ? c->ops->upload_ahead_wait_ns(c) : 0;
}

enum status compute_download_start(struct compute *c, float *host, const float *device,
                                   size_t count, struct error *err)
{
    return c->ops->download_start(c, host, device, count, err);
}

enum status compute_download_wait(struct compute *c, struct error *err)
{
    return c->ops->download_wait(c, err);
}

enum status compute_download(struct compute *c, float *host, const float *device, size_t count,
                             struct error *err)
{
    enum status status = compute_download_start(c, host, device, count, err);

    return status == STATUS_OK ? compute_download_wait(c, err) : status;
}

enum status compute_synchronize(struct compute *c, struct error *err)
{
    return c->ops->synchronize(c, err);
}

enum status compute_upload_values(struct compute *c, void *device, const float *host, size_t count,
                                  struct error *err)
{
    return c->ops->upload_values(c, device, host, count, err);
}

enum status compute_download_values(struct compute *c, float *host, const void *device,
                                    size_t count, struct error *err)
{
    return c->ops->download_values(c, host, device, count, err);
}

enum status compute_upload_images(struct compute *c, void *device, const float *host, size_t images,
                                  size_t channels, size_t points, struct error *err)
{
    if (!c->ops->upload_images)
        return compute_upload_values(c, device, host, images * channels * points, err);
    return c->ops->upload_images(c, device, host, images, channels, points, err);
}
