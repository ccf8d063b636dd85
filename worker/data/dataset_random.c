/*
 * random:N,D,C, noise of any size: N samples of D normal values, then N labels uniform below C,
 * from one generator; D may be a shape such as 3x224x224, which gives the same values.
 * random-tokens:N,T,V: N sequences of T ids uniform below V; the labels are the next ids.
 * Both are for measurements: a model can only memorise the samples.
 * The generator is seeded with seed + 1 (test split: seed + 2), because the model's weights are
 * drawn from `seed`.
 */
#include "common/base/memory.h"
#include "common/base/parse.h"
#include "common/base/random.h"
#include "worker/data/dataset_ops.h"

#include <stdio.h>
#include <string.h>

#define PREFIX        "random:"
#define TOKENS_PREFIX "random-tokens:"

static bool accepts(const char *spec)
{
    return strncmp(spec, PREFIX, strlen(PREFIX)) == 0;
}

static bool accepts_tokens(const char *spec)
{
    return strncmp(spec, TOKENS_PREFIX, strlen(TOKENS_PREFIX)) == 0;
}

/* A number from 1 to INT32_MAX; false for anything else. */
static bool parse_size(const char *text, size_t length, size_t *ret)
{
    char number[24];
    uint64_t value;

    if (length >= sizeof(number))
        return false;
    (void)snprintf(number, sizeof(number), "%.*s", (int)length, text);
    if (!parse_uint64(number, &value) || value == 0 || value > INT32_MAX)
        return false;
    *ret = (size_t)value;
    return true;
}

/* One size, or three separated by x: their product, also at most INT32_MAX. */
static bool parse_shape(const char *text, size_t length, size_t *ret)
{
    const char *end = text + length;
    size_t sizes[3];
    unsigned count = 0;

    for (;;) {
        size_t part = strcspn(text, "x,");

        if (count == 3 || !parse_size(text, part, &sizes[count++]))
            return false;
        text += part;
        if (text == end)
            break;
        text++;
    }
    if (count == 2)
        return false;
    *ret = sizes[0];
    for (unsigned i = 1; i < count; i++)
        if (!size_multiply(*ret, sizes[i], ret) || *ret > INT32_MAX)
            return false;
    return true;
}

/* Three sizes separated by commas; the second may be a shape.  False for anything else. */
static bool parse_sizes(const char *text, bool shape, size_t sizes[3])
{
    for (unsigned i = 0; i < 3; i++) {
        size_t length = strcspn(text, ",");

        if ((text[length] == ',') != (i < 2))
            return false;
        if (!(shape && i == 1 ? parse_shape : parse_size)(text, length, &sizes[i]))
            return false;
        text += length + 1;
    }
    return true;
}

static void seed_generator(const struct dataset_config *config, struct random *random)
{
    random_seed(random, config->seed + (config->split == SPLIT_TRAIN ? 1 : 2));
}

static enum status open_random(const struct dataset_config *config, struct dataset *d,
                               struct error *err)
{
    struct random random;
    size_t sizes[3];
    size_t floats;
    enum status status;

    if (!parse_sizes(config->spec + strlen(PREFIX), true, sizes))
        return error_set(err, STATUS_CONFIG,
                         "data '%s' is not random:SAMPLES,FEATURES,CLASSES with numbers from 1; "
                         "features may be a shape, as 3x32x32",
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
    seed_generator(config, &random);
    random_normal(&random, d->values, floats);
    for (size_t i = 0; i < sizes[0]; i++)
        d->labels[i] = (int32_t)(random_u32(&random) % (uint32_t)d->classes);
    return STATUS_OK;
}

static enum status open_tokens(const struct dataset_config *config, struct dataset *d,
                               struct error *err)
{
    struct random random;
    size_t sizes[3];
    size_t count;
    enum status status;

    if (!parse_sizes(config->spec + strlen(TOKENS_PREFIX), false, sizes) ||
        sizes[2] > TOKENS_VOCABULARY_MAX)
        return error_set(err, STATUS_CONFIG,
                         "data '%s' is not random-tokens:SAMPLES,POSITIONS,VOCABULARY with numbers "
                         "from 1, the vocabulary at most %d",
                         config->spec, TOKENS_VOCABULARY_MAX);
    status = dataset_samples(config, sizes[0], &d->count, err);
    if (status != STATUS_OK)
        return status;
    d->features = sizes[1];
    d->positions = sizes[1];
    d->classes = sizes[2];
    count = sizes[0] * sizes[1] + 1; /* both are below 2^31 */
    status = mem_calloc(count, 4, "random tokens", &d->ids, err);
    if (status != STATUS_OK)
        return status;
    seed_generator(config, &random);
    for (size_t i = 0; i < count; i++) {
        uint32_t id = random_u32(&random) % (uint32_t)d->classes;

        for (unsigned k = 0; k < 4; k++)
            d->ids[4 * i + k] = (unsigned char)(id >> (8 * k));
    }
    return tokens_init(&d->tokens, config->spec, d->ids, 4 * count, 4, d->classes, err);
}

const struct dataset_ops dataset_random_ops = {
    .usage = PREFIX "N,D,C",
    .accepts = accepts,
    .open = open_random,
};

const struct dataset_ops dataset_random_tokens_ops = {
    .usage = TOKENS_PREFIX "N,T,V",
    .accepts = accepts_tokens,
    .open = open_tokens,
};
