/*
 * vgg: torchvision's VGG-11 and VGG-16, without batch norm and (dropout's p = 0) without dropout.
 * Modules are numbered as in its nn.Sequential: each convolution is followed by its ReLU.
 * Sources: Simonyan and Zisserman 2014; torchvision/models/vgg.py.
 */
#include "worker/model/builder.h"

#define POOL 0

static unsigned build_features(struct builder *b, unsigned in, const size_t *plan, size_t length)
{
    size_t module = 0;

    for (size_t i = 0; i < length; i++) {
        struct module_name name = build_name("features.%zu", module);

        module += plan[i] == POOL ? 1 : 2;
        if (plan[i] == POOL)
            in = build_max_pool(b, in, 2, 2, 0);
        else
            in = build_convolution(
                b, in,
                &(struct build_convolution){.name = name.text,
                                            .filters = plan[i],
                                            .kernel = 3,
                                            .stride = 1,
                                            .padding = 1,
                                            .activation = ACTIVATION_RELU,
                                            .initial = {.kind = INITIAL_KAIMING}});
    }
    return in;
}

void build_vgg(struct builder *b, const struct spec *spec)
{
    static const size_t plan11[] = {64,  POOL, 128,  POOL, 256, 256, POOL,
                                    512, 512,  POOL, 512,  512, POOL};
    static const size_t plan16[] = {64,   64,  POOL, 128, 128,  POOL, 256, 256, 256,
                                    POOL, 512, 512,  512, POOL, 512,  512, 512, POOL};
    bool deep = spec->layers == 16;
    size_t hidden = spec->height < SPEC_SMALL ? 512 : 4096;
    unsigned at = build_input(b, spec->channels, spec->height, spec->width);

    at = build_features(b, at, deep ? plan16 : plan11,
                        deep ? sizeof(plan16) / sizeof(plan16[0])
                             : sizeof(plan11) / sizeof(plan11[0]));
    for (int i = 0; i < 3; i++) {
        static const char *const names[3] = {"classifier.0", "classifier.3", "classifier.6"};

        at = build_linear(
            b, at,
            &(struct build_linear){.name = names[i],
                                   .out = i < 2 ? hidden : spec->classes,
                                   .activation = i < 2 ? ACTIVATION_RELU : ACTIVATION_NONE,
                                   .initial = {.kind = INITIAL_NORMAL, .deviation = 0.01}});
    }
}
