/*
 * spec: parser of "<kind>:<numbers>": one function per family of architectures, found in a table by
 * name. spec_cnn.c parses the layers of a cnn.  Sizes are checked here against the limits of the
 * spec; builder.c checks what depends on the batch and on derived shapes.
 */
#include "worker/model/spec_reader.h"

#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define IMAGE_MAX      65536 /* rows, columns, channels, classes */
#define GPT_LAYERS_MAX 1024  /* opening a model takes time quadratic in it */
#define GPT_MAX        65536 /* heads, width, positions */
#define GPT_VOCABULARY 256
#define LENET          "cnn:1x28x28-conv6k5p2-pool-conv16k5p0-pool-fc120-fc84-fc10"

/* ---- reading ---- */

enum status spec_fail(const struct spec_reader *r, const char *at, const char *format, ...)
{
    char problem[160];
    va_list arguments;

    va_start(arguments, format);
    (void)vsnprintf(problem, sizeof(problem), format, arguments);
    va_end(arguments);
    return error_set(r->err, STATUS_CONFIG, "model '%s', position %td: %s", r->text,
                     at - r->text + 1, problem);
}

enum status spec_number(struct spec_reader *r, const char *what, size_t min, size_t max,
                        size_t *ret)
{
    const char *start = r->at;
    const char *end = start;
    uint64_t value = 0;

    while (*end >= '0' && *end <= '9' && value <= max)
        value = 10 * value + (uint64_t)(*end++ - '0');
    if (end == start)
        return spec_fail(r, start, "expected %s in digits", what);
    if (*start == '0' && (min > 0 || end > start + 1))
        return spec_fail(r, start, "%s starts with 1 to 9", what);
    if (value > max)
        return spec_fail(r, start, "%s is at most %zu", what, max);
    *ret = (size_t)value;
    r->at = end;
    return STATUS_OK;
}

bool spec_accept(struct spec_reader *r, const char *word)
{
    size_t length = strlen(word);

    if (strncmp(r->at, word, length) != 0)
        return false;
    r->at += length;
    return true;
}

enum status spec_expect(struct spec_reader *r, const char *word, const char *expected)
{
    return spec_accept(r, word) ? STATUS_OK : spec_fail(r, r->at, "expected %s", expected);
}

enum status spec_image(struct spec_reader *r, struct spec *spec)
{
    static const char *const names[3] = {"a number of channels", "a height", "a width"};
    size_t *sizes[3] = {&spec->channels, &spec->height, &spec->width};
    const char *start = r->at;
    enum status status = STATUS_OK;

    for (int i = 0; i < 3 && status == STATUS_OK; i++) {
        if (i > 0)
            status = spec_expect(r, "x", "'x', as in 3x32x32");
        if (status == STATUS_OK)
            status = spec_number(r, names[i], 1, IMAGE_MAX, sizes[i]);
    }
    if (status == STATUS_OK && spec->channels * spec->height * spec->width > INT_MAX)
        return spec_fail(r, start, "an image has at most %d values", INT_MAX);
    return status;
}

/* ---- families ---- */

static enum status read_mlp(struct spec_reader *r, struct spec *spec)
{
    size_t widths = 0;

    for (;;) {
        enum status status;

        if (widths > SPEC_LAYERS_MAX)
            return spec_fail(r, r->at, "too many layers, at most %d", SPEC_LAYERS_MAX);
        status = spec_number(r, "a width", 1, SPEC_WIDTH_MAX, &spec->widths[widths]);
        if (status != STATUS_OK)
            return status;
        widths++;
        if (*r->at == '\0')
            break;
        status = spec_expect(r, "-", "'-' or the end");
        if (status != STATUS_OK)
            return status;
    }
    if (widths < 2)
        return spec_fail(r, r->at, "expected '-' and another width: inputs and outputs");
    spec->layers = widths - 1;
    return STATUS_OK;
}

/* "CxHxW,CLASSES" or nothing. */
static enum status read_image_net(struct spec_reader *r, struct spec *spec)
{
    enum status status;

    if (*r->at == '\0') {
        spec->channels = 3;
        spec->height = spec->width = 32;
        spec->classes = 10;
        return STATUS_OK;
    }
    status = spec_image(r, spec);
    if (status == STATUS_OK)
        status = spec_expect(r, ",", "',' and a number of classes");
    return status == STATUS_OK ? spec_number(r, "a number of classes", 1, IMAGE_MAX, &spec->classes)
                               : status;
}

/* The first stage has the largest activations: 64 filters (18 layers) or 256. */
static enum status read_resnet(struct spec_reader *r, struct spec *spec)
{
    const char *start = r->at;
    enum status status = read_image_net(r, spec);
    size_t filters = spec->layers == 18 ? 64 : 256;

    if (status == STATUS_OK && spec->height * spec->width > INT_MAX / filters)
        return spec_fail(r, start, "an image has at most %zu pixels", INT_MAX / filters);
    return status;
}

/* Five pools halve the image; the large classifier reads 512 x 7 x 7. */
static enum status read_vgg(struct spec_reader *r, struct spec *spec)
{
    const char *start = r->at;
    enum status status = read_image_net(r, spec);

    if (status != STATUS_OK)
        return status;
    if (spec->height < 32 || spec->width < 32)
        return spec_fail(r, start,
                         "an image of %zux%zu is too small for 5 pools of 2, at least "
                         "32x32",
                         spec->height, spec->width);
    if (spec->height >= SPEC_SMALL ? spec->height != 224 || spec->width != 224
                                   : spec->width >= SPEC_SMALL)
        return spec_fail(r, start, "images are 224x224, or smaller than %dx%d", SPEC_SMALL,
                         SPEC_SMALL);
    return STATUS_OK;
}

static enum status read_gpt(struct spec_reader *r, struct spec *spec)
{
    static const char *const names[5] = {"a number of layers", "a number of heads", "a width",
                                         "a number of positions", "a vocabulary"};
    static const size_t most[5] = {GPT_LAYERS_MAX, GPT_MAX, GPT_MAX, GPT_MAX, SPEC_WIDTH_MAX};
    size_t *numbers[5] = {&spec->layers, &spec->heads, &spec->width, &spec->positions,
                          &spec->vocabulary};
    const char *starts[5] = {0};
    enum status status = STATUS_OK;

    spec->vocabulary = GPT_VOCABULARY;
    for (int i = 0; i < 5 && status == STATUS_OK; i++) {
        if (i == 4 && *r->at == '\0')
            break;
        if (i > 0)
            status = spec_expect(r, ",", "',', as in gpt:4,4,128,64");
        starts[i] = r->at;
        if (status == STATUS_OK)
            status = spec_number(r, names[i], 1, most[i], numbers[i]);
    }
    if (status != STATUS_OK)
        return status;
    if (spec->width % spec->heads != 0)
        return spec_fail(r, starts[2], "a width of %zu does not divide by %zu heads", spec->width,
                         spec->heads);
    if (spec->positions * 4 * spec->width > INT_MAX || spec->positions * spec->vocabulary > INT_MAX)
        return spec_fail(r, starts[3], "%zu positions are too many for that width or vocabulary",
                         spec->positions);
    return STATUS_OK;
}

static enum status read_profile(struct spec_reader *r, struct spec *spec)
{
    spec->path = r->at;
    r->at += strlen(r->at);
    return *spec->path != '\0' ? STATUS_OK : spec_fail(r, r->at, "expected a file");
}

static const struct family {
    const char *name;
    enum status (*read)(struct spec_reader *r, struct spec *spec);
    bool optional; /* the numbers */
    struct spec start;
} families[] = {
    {"linear", read_mlp, false, {.kind = SPEC_MLP}},
    {"mlp", read_mlp, false, {.kind = SPEC_MLP, .relu = true}},
    {"mlp-bn", read_mlp, false, {.kind = SPEC_MLP, .relu = true, .batch_norm = true}},
    {"cnn", spec_read_cnn, false, {.kind = SPEC_CNN}},
    {"resnet18", read_resnet, true, {.kind = SPEC_RESNET, .layers = 18}},
    {"resnet50", read_resnet, true, {.kind = SPEC_RESNET, .layers = 50}},
    {"vgg11", read_vgg, true, {.kind = SPEC_VGG, .layers = 11}},
    {"vgg16", read_vgg, true, {.kind = SPEC_VGG, .layers = 16}},
    {"gpt", read_gpt, false, {.kind = SPEC_GPT}},
    {"profile", read_profile, false, {.kind = SPEC_PROFILE}},
};

static const struct family *find_family(const char *text, size_t length)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++)
        if (strlen(families[i].name) == length && strncmp(families[i].name, text, length) == 0)
            return &families[i];
    return NULL;
}

static enum status read_family(struct spec_reader *r, const struct family *family,
                               struct spec *spec)
{
    enum status status = STATUS_OK;

    if (*r->at == '\0' && !family->optional)
        return spec_fail(r, r->at, "expected ':' and numbers or a file, as in mlp:784-128-10");
    if (*r->at == ':' && *++r->at == '\0' && family->optional)
        return spec_fail(r, r->at, "expected an image and classes, as in 3x32x32,10");
    status = family->read(r, spec);
    return status == STATUS_OK && *r->at != '\0' ? spec_fail(r, r->at, "expected the end") : status;
}

enum status spec_parse(const char *text, struct spec *ret, struct error *err)
{
    struct spec_reader r = {.text = text, .err = err};
    const struct family *family;
    struct spec spec;
    enum status status;

    if (strcmp(text, "lenet") == 0)
        r.text = LENET;
    else if (strncmp(text, "lenet:", 6) == 0)
        return spec_fail(&r, text + 5, "expected the end");
    r.at = r.text + strcspn(r.text, ":");
    family = find_family(r.text, (size_t)(r.at - r.text));
    if (!family)
        return spec_fail(&r, r.text,
                         "expected linear, mlp, mlp-bn, cnn, lenet, resnet18, resnet50, vgg11, "
                         "vgg16, gpt or profile, as in mlp:784-128-10");
    spec = family->start;
    status = read_family(&r, family, &spec);
    if (status == STATUS_OK)
        *ret = spec;
    return status;
}
