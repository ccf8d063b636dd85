/*
 * Model specs: accepted texts and their values; all other texts are rejected with the position of
 * the error.
 */
#include "tests/support/support.h"
#include "worker/model/spec.h"

#include <stdio.h>
#include <string.h>

static struct error err;

START_TEST(test_accepted)
{
    struct spec s;

    assert_ok(spec_parse("mlp:784-128-10", &s, &err));
    ck_assert(s.relu);
    ck_assert_uint_eq(s.layers, 2);
    ck_assert(s.widths[0] == 784 && s.widths[1] == 128 && s.widths[2] == 10);
    assert_ok(spec_parse("linear:10-5-2", &s, &err));
    ck_assert(!s.relu && !s.batch_norm);
    ck_assert_uint_eq(s.layers, 2);
    assert_ok(spec_parse("mlp-bn:784-128-64-10", &s, &err));
    ck_assert(s.relu && s.batch_norm);
    ck_assert_uint_eq(s.layers, 3);
    assert_ok(spec_parse("linear:1-1", &s, &err));
    ck_assert_uint_eq(s.layers, 1);
    assert_ok(spec_parse("mlp:16777216-1", &s, &err));
    ck_assert_uint_eq(s.widths[0], 16777216);
}
END_TEST

START_TEST(test_cnn)
{
    static const struct spec_layer expected[] = {
        {.kind = SPEC_CONV, .width = 32, .kernel = 3, .stride = 1, .padding = 1},
        {.kind = SPEC_POOL, .kernel = 2, .stride = 2},
        {.kind = SPEC_CONV, .width = 64, .kernel = 5, .stride = 2, .batch_norm = true},
        {.kind = SPEC_POOL, .kernel = 3, .stride = 3},
        {.kind = SPEC_FC, .width = 128, .batch_norm = true},
        {.kind = SPEC_FC, .width = 10},
    };
    struct spec s;

    assert_ok(spec_parse("cnn:3x28x27-conv32-pool-conv64k5s2p0-bn-poolk3-fc128-bn-fc10", &s, &err));
    ck_assert_int_eq(s.kind, SPEC_CNN);
    ck_assert(s.channels == 3 && s.height == 28 && s.width == 27);
    ck_assert_uint_eq(s.layers, sizeof(expected) / sizeof(expected[0]));
    for (size_t l = 0; l < s.layers; l++) {
        ck_assert_int_eq((int)s.cnn[l].kind, (int)expected[l].kind);
        ck_assert_uint_eq(s.cnn[l].width, expected[l].width);
        ck_assert_uint_eq(s.cnn[l].kernel, expected[l].kernel);
        ck_assert_uint_eq(s.cnn[l].stride, expected[l].stride);
        ck_assert_uint_eq(s.cnn[l].padding, expected[l].padding);
        ck_assert_int_eq(s.cnn[l].batch_norm, expected[l].batch_norm);
    }
    assert_ok(spec_parse("lenet", &s, &err));
    ck_assert(s.layers == 7 && s.cnn[2].kernel == 5 && s.cnn[2].padding == 0);
    assert_ok(spec_parse("cnn:1x1x1-fc2", &s, &err));
    assert_ok(spec_parse("cnn:1x1x5-conv2k3p1-fc2", &s, &err));
}
END_TEST

START_TEST(test_named)
{
    struct spec s;

    assert_ok(spec_parse("resnet18", &s, &err));
    ck_assert(s.kind == SPEC_RESNET && s.layers == 18 && s.channels == 3 && s.height == 32 &&
              s.width == 32 && s.classes == 10);
    assert_ok(spec_parse("resnet50:1x224x200,1000", &s, &err));
    ck_assert(s.kind == SPEC_RESNET && s.layers == 50 && s.channels == 1 && s.height == 224 &&
              s.width == 200 && s.classes == 1000);
    assert_ok(spec_parse("vgg11:3x63x33,7", &s, &err));
    ck_assert(s.kind == SPEC_VGG && s.layers == 11 && s.classes == 7);
    assert_ok(spec_parse("vgg16:3x224x224,1000", &s, &err));
    ck_assert(s.kind == SPEC_VGG && s.layers == 16);
    assert_ok(spec_parse("gpt:12,6,768,1024", &s, &err));
    ck_assert(s.kind == SPEC_GPT && s.layers == 12 && s.heads == 6 && s.width == 768 &&
              s.positions == 1024 && s.vocabulary == 256);
    assert_ok(spec_parse("gpt:1,1,1,1,50257", &s, &err));
    ck_assert_uint_eq(s.vocabulary, 50257);
    assert_ok(spec_parse("gpt:1024,1,1,1", &s, &err));
    ck_assert_uint_eq(s.layers, 1024);
    assert_ok(spec_parse("profile:a folder/b:1.json", &s, &err));
    ck_assert(s.kind == SPEC_PROFILE);
    ck_assert_str_eq(s.path, "a folder/b:1.json");
}
END_TEST

static const struct {
    const char *text;
    const char *part;
} refused[] = {
    {"", "model '', position 1: expected linear, mlp, mlp-bn, cnn"},
    {"mlp", "position 4: expected ':' and numbers"},
    {"MLP:1-2", "position 1"},
    {" mlp:1-2", "position 1"},
    {"resnet34", "model 'resnet34', position 1: expected linear"},
    {"resnet", "position 1: expected linear"},
    {"lenet:", "model 'lenet:', position 6: expected the end"},
    {"lenet5", "position 1: expected linear"},
    {"cnn", "position 4: expected ':'"},
    {"gpt", "position 4: expected ':'"},
    {"profile", "position 8: expected ':'"},
    {"profile:", "position 9: expected a file"},
    {"cnn:", "position 5: expected a number of channels in digits"},
    {"cnn:1x28-fc10", "position 9: expected 'x'"},
    {"cnn:0x28x28-fc10", "position 5: a number of channels starts with 1 to 9"},
    {"cnn:1x28x65537-fc10", "position 10: a width is at most 65536"},
    {"cnn:2x65536x65536-fc10", "position 5: an image has at most"},
    {"cnn:1x28x28", "position 12: expected '-' and a layer"},
    {"cnn:1x28x28-", "position 13: unknown layer: conv, pool, bn and fc are known"},
    {"cnn:1x28x28-dense10", "position 13: unknown layer"},
    {"cnn:1x28x28-conv6-gelu-fc10", "position 19: unknown layer"},
    {"cnn:1x28x28-conv-fc10", "position 17: expected a number of filters"},
    {"cnn:1x28x28-conv6k0-fc10", "position 19: a kernel starts with 1 to 9"},
    {"cnn:1x28x28-conv6s0-fc10", "position 19: a stride starts with 1 to 9"},
    {"cnn:1x28x28-conv6p00-fc10", "position 19: a padding starts with 1 to 9"},
    {"cnn:1x28x28-conv6p1k3-fc10", "position 20: expected '-' or the end"},
    {"cnn:1x4x9-conv6k5p0-fc10", "position 11: a window of 5x5 does not fit on 4x9 with padding 0"},
    {"cnn:1x4x4-pool-pool-pool-fc2", "position 21: a window of 2x2 does not fit on 1x1"},
    {"cnn:1x8x8-poolk9-fc2", "position 11: a window of 9x9 does not fit on 8x8"},
    {"cnn:1x8x8-bn-fc2", "position 11: bn stands behind a conv or an fc"},
    {"cnn:1x8x8-pool-bn-fc2", "position 16: bn stands behind"},
    {"cnn:1x8x8-conv2-bn-bn-fc2", "position 20: bn stands behind"},
    {"cnn:1x8x8-fc4-conv2-fc2", "position 15: behind an fc there is no image"},
    {"cnn:1x8x8-fc4-pool-fc2", "position 15: behind an fc there is no image"},
    {"cnn:1x8x8-conv4", "position 16: expected '-' and an fc as the last layer"},
    {"cnn:1x8x8-fc4-bn", "position 17: expected '-' and an fc as the last layer"},
    {"cnn:1x60000x30000-conv2-fc1", "position 19: 2 x 60000 x 30000 activations"},
    {"resnet18:", "position 10: expected an image and classes"},
    {"resnet18:3x32x32", "position 17: expected ',' and a number of classes"},
    {"resnet18:3x32x32,", "position 18: expected a number of classes in digits"},
    {"resnet18:3x32x32,10,", "position 20: expected the end"},
    {"resnet50:1x4096x4096,10", "position 10: an image has at most"},
    {"vgg11:3x31x32,10", "position 7: an image of 31x32 is too small for 5 pools"},
    {"vgg16:3x64x64,10", "position 7: images are 224x224, or smaller than 64x64"},
    {"vgg16:3x32x64,10", "position 7: images are 224x224"},
    {"gpt:", "position 5: expected a number of layers in digits"},
    {"gpt:1025,4,128,64", "position 5: a number of layers is at most 1024"},
    {"gpt:4,65537,128,64", "position 7: a number of heads is at most 65536"},
    {"gpt:4,4,128", "position 12: expected ','"},
    {"gpt:4,3,128,64", "position 9: a width of 128 does not divide by 3 heads"},
    {"gpt:4,4,128,0", "position 13: a number of positions starts with 1 to 9"},
    {"gpt:4,4,128,64,", "position 16: expected a vocabulary in digits"},
    {"gpt:4,4,128,64,256,1", "position 19: expected the end"},
    {"gpt:4,4,128,64,16777217", "position 16: a vocabulary is at most 16777216"},
    {"gpt:1,1,65536,65536", "position 15: 65536 positions are too many"},
    {"gpt:4,4,128,64 ", "position 15"},
    {"mlp:", "model 'mlp:', position 5: expected a width"},
    {"mlp:784", "position 8: expected '-' and another width"},
    {"mlp:784-", "position 9: expected a width"},
    {"mlp:784--10", "model 'mlp:784--10', position 9: expected a width"},
    {"mlp:-784-10", "position 5"},
    {"mlp:784-10-", "position 12: expected a width"},
    {"mlp:784-10x", "position 11: expected '-' or the end"},
    {"mlp:784 -10", "position 8: expected '-' or the end"},
    {"mlp:784,10", "position 8"},
    {"mlp:0-10", "position 5: a width starts with 1 to 9"},
    {"mlp:784-010", "position 9: a width starts with 1 to 9"},
    {"mlp:16777217-10", "position 5: a width is at most 16777216"},
    {"mlp:99999999999999999999999999999999-10", "position 5: a width is at most"},
    {"linear:+5-2", "position 8"},
    {"linear:5-2\n", "position 11: expected '-' or the end"},
};

START_TEST(test_refused)
{
    struct spec s = {.layers = 77};

    assert_fails(spec_parse(refused[_i].text, &s, &err), STATUS_CONFIG, refused[_i].part);
    ck_assert_uint_eq(s.layers, 77);
}
END_TEST

START_TEST(test_layer_limit)
{
    char text[16 + 2 * (SPEC_LAYERS_MAX + 2)];
    struct spec s;
    size_t length = 5;

    (void)snprintf(text, sizeof(text), "mlp:1");
    for (size_t l = 0; l < SPEC_LAYERS_MAX; l++)
        length += (size_t)snprintf(text + length, sizeof(text) - length, "-1");
    assert_ok(spec_parse(text, &s, &err));
    ck_assert_uint_eq(s.layers, SPEC_LAYERS_MAX);
    (void)snprintf(text + length, sizeof(text) - length, "-1");
    assert_fails(spec_parse(text, &s, &err), STATUS_CONFIG, "too many layers, at most 64");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("spec", 0, TEST(test_accepted), TEST(test_cnn), TEST(test_named),
                       LOOP_TEST(test_refused, 0, sizeof(refused) / sizeof(refused[0])),
                       TEST(test_layer_limit));
}
