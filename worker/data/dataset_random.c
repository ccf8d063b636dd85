/*
 * random:N,D,C, noise of any size: N samples of D normal values, then N labels uniform below C,
 * from one generator.  There is nothing to learn but the samples themselves; it is for measuring.
 * The generator is seeded seed + 1 (test split: seed + 2), because the model's weights come from
 * `seed` itself.
 */
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/random.h"
#include "worker/data/dataset_ops.h"

#include <stdio.h>
#include <string.h>

#define PREFIX "random:"

static bool accepts(const char *spec)
{
    return strncmp(spec, PREFIX, strlen(PREFIX)) == 0;
}

/* Three numbers from 1 to INT32_MAX between commas; false for anything else. */
static bool parse_sizes(const char *text, size_t sizes[3])
{
    for (unsigned i = 0; i < 3; i++) {
        size_t length = strcspn(text, ",");
        char number[24];
        uint64_t value;

        if (length >= sizeof(number) || (text[length] == ',') != (i < 2))
            return false;
        (void)snprintf(number, sizeof(number), "%.*s", (int)length, text);
        if (!parse_uint64(number, &value) || value == 0 || value > INT32_MAX)
            return false;
        sizes[i] = (size_t)value;
        text += length + 1;
    }
    return true;
}

static enum status open_random(const struct dataset_config *config, struct dataset *d,
                               struct error *err)
{
    struct random random;
    size_t sizes[3];
    size_t floats;
    enum status status;

    if (!parse_sizes(config->spec + strlen(PREFIX), sizes))
        return error_set(err, STATUS_CONFIG,
                         "data '%s' is not random:SAMPLES,FEATURES,CLASSES with numbers from 1",
                         config->spec);
    status = dataset_samples(config, sizes[0], &d->count, err);
    if (status != STATUS_OK)
        return status;
    d->features = sizes[1];
    d->classes = sizes[2];
    floats = sizes[0] * sizes[1]; /* both are below 2^31 */
    status = mem_calloc_aligned(floats, sizeof(float), "random samples", &d->values, err);
    if (status == STATUS_OK)
        status = mem_calloc(sizes[0], sizeof(*d->labels), "random labels", &d->labels, err);
    if (status != STATUS_OK)
        return status;
    random_seed(&random, config->seed + (config->split == SPLIT_TRAIN ? 1 : 2));
    random_normal(&random, d->values, floats);
    for (size_t i = 0; i < sizes[0]; i++)
        d->labels[i] = (int32_t)(random_u32(&random) % (uint32_t)d->classes);
    return STATUS_OK;
}

const struct dataset_ops dataset_random_ops = {
    .usage = PREFIX "N,D,C",
    .accepts = accepts,
    .open = open_random,
};
