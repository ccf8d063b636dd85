/*
 * train_model: parses --model.  Only the sizes of input and labels are read from a spec; the worker
 * validates the rest.
 */
#include "experiments/bench/train_model.h"

#include "common/base/parse.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 4096
#define DATA_VALUES (16u << 20) /* 64 MiB */

/* The shape of a sample. */
struct sample {
    char shape[64];     /* features, as 784 or 3x32x32; "" for tokens */
    uint64_t features;  /* their number; tokens: positions */
    uint64_t classes;   /* or vocabulary */
    uint64_t positions; /* of tokens; 0: no tokens */
};

/* "3x32x32" -> its product; 0: not one. */
static uint64_t shape_product(const char *text)
{
    uint64_t product = 1;
    char copy[64];
    char *rest = NULL;

    (void)snprintf(copy, sizeof(copy), "%s", text);
    for (const char *word = strtok_r(copy, "x", &rest); word; word = strtok_r(NULL, "x", &rest)) {
        uint64_t size = 0;

        if (!parse_uint64(word, &size) || size == 0 || size > 1u << 20 || product > 1u << 30)
            return 0;
        product *= size;
    }
    return text[0] ? product : 0;
}

static void set_shape(struct sample *s, const char *text, size_t length)
{
    (void)snprintf(s->shape, sizeof(s->shape), "%.*s", (int)length, text);
}

/* mlp:784-128-10, cnn:1x28x28-conv32-pool-fc10: the first word, and the number that ends it. */
static void read_layers(struct sample *s, const char *sizes)
{
    const char *last = strrchr(sizes, '-');

    set_shape(s, sizes, strcspn(sizes, "-"));
    s->classes = last ? strtoull(last + 1 + strcspn(last + 1, "0123456789"), NULL, 10) : 0;
}

/* [CxHxW,CLASSES] */
static void read_image(struct sample *s, const char *sizes)
{
    const char *comma = strchr(sizes, ',');

    set_shape(s, "3x32x32", 7);
    s->classes = 10;
    if (sizes[0]) {
        set_shape(s, sizes, strcspn(sizes, ","));
        s->classes = comma ? strtoull(comma + 1, NULL, 10) : 0;
    }
}

/* L,H,D,T[,V] */
static void read_sequence(struct sample *s, const char *sizes)
{
    uint64_t numbers[5] = {0, 0, 0, 0, 256};

    for (size_t i = 0; i < 5 && sizes; i++) {
        numbers[i] = strtoull(sizes, NULL, 10);
        sizes = strchr(sizes, ',');
        sizes = sizes ? sizes + 1 : NULL;
    }
    s->features = s->positions = numbers[3];
    s->classes = numbers[4];
}

static struct sample read_spec(const char *spec)
{
    const char *sizes = strchr(spec, ':');
    struct sample s = {.features = 0};

    sizes = sizes ? sizes + 1 : "";
    if (strcmp(spec, "lenet") == 0)
        read_image(&s, "1x28x28,10");
    else if (strncmp(spec, "gpt", 3) == 0)
        read_sequence(&s, sizes);
    else if (strncmp(spec, "resnet", 6) == 0 || strncmp(spec, "vgg", 3) == 0)
        read_image(&s, sizes);
    else
        read_layers(&s, sizes);
    if (s.positions == 0)
        s.features = shape_product(s.shape);
    return s;
}

/* As many samples as fit into 64 MiB, in whole batches of all ranks, at least two of them. */
static enum status fit_data(struct train_model *m, int64_t ranks, struct error *err)
{
    struct sample s = read_spec(m->spec);
    uint64_t round = (uint64_t)(m->batch_size * ranks);
    uint64_t count;

    if (s.features == 0 || s.classes == 0)
        return error_set(err, STATUS_CONFIG, "model '%s' has no sizes like mlp:784-128-10",
                         m->spec);
    count = DATA_VALUES / s.features < SAMPLES_MAX ? DATA_VALUES / s.features : SAMPLES_MAX;
    count = count / round < 2 ? 2 * round : count / round * round;
    m->positions = s.positions ? s.positions : 1;
    if (s.positions)
        (void)snprintf(m->data, sizeof(m->data), "random-tokens:%" PRIu64 ",%" PRIu64 ",%" PRIu64,
                       count, s.positions, s.classes);
    else
        (void)snprintf(m->data, sizeof(m->data), "random:%" PRIu64 ",%s,%" PRIu64, count, s.shape,
                       s.classes);
    return STATUS_OK;
}

/* The next model's text, terminated in place; NULL: no more. */
static char *next_words(char **rest)
{
    char *words = *rest;
    char *end;

    if (!words || !words[0])
        return NULL;
    for (end = strchr(words, ','); end && !isalpha((unsigned char)end[1]);)
        end = strchr(end + 1, ',');
    *rest = end ? end + 1 : NULL;
    if (end)
        *end = '\0';
    return words;
}

/* SPEC[@BATCH[@STEPS]] */
static enum status parse_model(struct train_model *m, char *words, struct error *err)
{
    char whole[256];
    char *rest = NULL;
    const char *spec, *batch, *steps;
    uint64_t number = 0;

    (void)snprintf(whole, sizeof(whole), "%s", words);
    spec = strtok_r(words, "@", &rest);
    batch = strtok_r(NULL, "@", &rest);
    steps = strtok_r(NULL, "@", &rest);
    (void)snprintf(m->spec, sizeof(m->spec), "%s", spec ? spec : "");
    if (batch && (!parse_uint64(batch, &number) || number < 1 || number > 1000000))
        return error_set(err, STATUS_INVALID, "--model '%s': '%s' is no batch size", whole, batch);
    if (batch)
        m->batch_size = (int64_t)number;
    if (steps && (!parse_uint64(steps, &number) || number < 10 || number > 1000000))
        return error_set(err, STATUS_INVALID, "--model '%s': '%s' is no number of steps", whole,
                         steps);
    if (steps)
        m->steps = (int64_t)number;
    return STATUS_OK;
}

enum status train_models_parse(const char *text, int64_t batch_size, int64_t steps, int64_t ranks,
                               struct train_model *models, size_t max, size_t *ret_count,
                               struct error *err)
{
    char *copy = strdup(text);
    char *rest = copy;
    size_t count = 0;
    enum status status = STATUS_OK;

    if (!copy)
        return error_set(err, STATUS_NO_MEMORY, "no memory for --model");
    for (char *words = next_words(&rest); words && status == STATUS_OK; words = next_words(&rest)) {
        struct train_model *m = &models[count];

        if (count == max) {
            status = error_set(err, STATUS_INVALID, "--model names more than %zu models", max);
            break;
        }
        *m = (struct train_model){.batch_size = batch_size, .steps = steps};
        status = parse_model(m, words, err);
        if (status == STATUS_OK)
            status = fit_data(m, ranks, err);
        count++;
    }
    free(copy);
    if (status == STATUS_OK && count == 0)
        return error_set(err, STATUS_INVALID, "--model names none");
    *ret_count = count;
    return status;
}
