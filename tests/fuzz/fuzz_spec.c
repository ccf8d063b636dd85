/*
 * Fuzzes the parser of model specs.  An error must name the spec and a position in it.  An accepted
 * spec must be within the limits of spec.h, the shapes of a cnn must match from layer to layer, and
 * the spec written in full must parse to the same spec.
 */
#include "common/base/strbuf.h"
#include "tests/fuzz/fuzz.h"
#include "worker/model/spec.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define LENET "cnn:1x28x28-conv6k5p2-pool-conv16k5p0-pool-fc120-fc84-fc10"

static void write_layer(const struct spec_layer *l, struct strbuf *text)
{
    if (l->kind == SPEC_POOL)
        strbuf_addf(text, "-poolk%zu", l->kernel);
    else if (l->kind == SPEC_FC)
        strbuf_addf(text, "-fc%zu", l->width);
    else
        strbuf_addf(text, "-conv%zuk%zus%zup%zu", l->width, l->kernel, l->stride, l->padding);
    if (l->batch_norm)
        strbuf_add(text, "-bn");
}

static void write_spec(const struct spec *s, struct strbuf *text)
{
    switch (s->kind) {
    case SPEC_MLP:
        strbuf_add(text, s->batch_norm ? "mlp-bn" : s->relu ? "mlp" : "linear");
        for (size_t i = 0; i <= s->layers; i++)
            strbuf_addf(text, "%c%zu", i == 0 ? ':' : '-', s->widths[i]);
        break;
    case SPEC_CNN:
        strbuf_addf(text, "cnn:%zux%zux%zu", s->channels, s->height, s->width);
        for (size_t i = 0; i < s->layers; i++)
            write_layer(&s->cnn[i], text);
        break;
    case SPEC_RESNET:
    case SPEC_VGG:
        strbuf_addf(text, "%s%zu:%zux%zux%zu,%zu", s->kind == SPEC_VGG ? "vgg" : "resnet",
                    s->layers, s->channels, s->height, s->width, s->classes);
        break;
    case SPEC_GPT:
        strbuf_addf(text, "gpt:%zu,%zu,%zu,%zu,%zu", s->layers, s->heads, s->width, s->positions,
                    s->vocabulary);
        break;
    case SPEC_PROFILE:
        strbuf_addf(text, "profile:%s", s->path);
        break;
    }
    require(strbuf_ok(text));
}

static size_t output_size(size_t size, const struct spec_layer *l)
{
    require(l->kernel > 0 && l->stride > 0 && size + 2 * l->padding >= l->kernel);
    return (size + 2 * l->padding - l->kernel) / l->stride + 1;
}

/* The output of each layer is not empty, and its size fits an int. */
static void check_cnn(const struct spec *s)
{
    size_t channels = s->channels, height = s->height, width = s->width;

    for (size_t i = 0; i < s->layers; i++) {
        const struct spec_layer *l = &s->cnn[i];

        require(l->kind == SPEC_POOL || (l->width > 0 && l->width <= SPEC_WIDTH_MAX));
        require(!l->batch_norm || l->kind != SPEC_POOL);
        require(l->kind == SPEC_FC || i == 0 || s->cnn[i - 1].kind != SPEC_FC);
        if (l->kind == SPEC_FC)
            continue;
        height = output_size(height, l);
        width = output_size(width, l);
        channels = l->kind == SPEC_CONV ? l->width : channels;
        require(channels * height * width > 0 && channels * height * width <= INT_MAX);
    }
    require(s->cnn[s->layers - 1].kind == SPEC_FC && !s->cnn[s->layers - 1].batch_norm);
}

static void check_spec(const struct spec *s)
{
    if (s->kind == SPEC_PROFILE) {
        require(s->path[0] != '\0');
        return;
    }
    require(s->layers > 0);
    if (s->kind == SPEC_GPT) {
        require(s->heads > 0 && s->width > 0 && s->width % s->heads == 0);
        require(s->positions > 0 && s->vocabulary > 0);
        require(s->positions * s->vocabulary <= INT_MAX);
        return;
    }
    require(s->kind == SPEC_RESNET || s->kind == SPEC_VGG || s->layers <= SPEC_LAYERS_MAX);
    if (s->kind == SPEC_MLP) {
        for (size_t i = 0; i <= s->layers; i++)
            require(s->widths[i] > 0 && s->widths[i] <= SPEC_WIDTH_MAX);
        return;
    }
    require(s->channels * s->height * s->width > 0);
    require(s->channels * s->height * s->width <= INT_MAX);
    if (s->kind == SPEC_CNN)
        check_cnn(s);
    else
        require(s->classes > 0);
}

static void check_refusal(const char *text, const struct error *err)
{
    const char *at = strstr(err->text, "position ");
    size_t longest = strlen(text) < strlen(LENET) ? strlen(LENET) : strlen(text);
    unsigned long position = 0;

    require(err->status == STATUS_CONFIG && strncmp(err->text, "model '", 7) == 0);
    if (strlen(text) > 200 || strstr(text, "position "))
        return; /* the text may fill the error */
    require(at && sscanf(at, "position %lu:", &position) == 1);
    require(position >= 1 && position <= longest + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = allocate(size + 1);
    struct strbuf first = STRBUF_INIT, second = STRBUF_INIT;
    struct spec spec = {0};
    struct error err = {0};

    if (size > 0)
        memcpy(text, data, size);
    if (spec_parse(text, &spec, &err) == STATUS_OK) {
        check_spec(&spec);
        write_spec(&spec, &first);
        require(spec_parse(first.text, &spec, &err) == STATUS_OK);
        write_spec(&spec, &second);
        require(strcmp(first.text, second.text) == 0);
    } else {
        check_refusal(text, &err);
    }
    strbuf_release(&first);
    strbuf_release(&second);
    free(text);
    return 0;
}
