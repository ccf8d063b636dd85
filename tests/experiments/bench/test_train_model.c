/*
 * The parser of `bench train --model`, and the data that it derives for each kind of model.
 */
#include "tests/support/support.h"

#include "experiments/bench/train_model.h"

#include <string.h>

#define MAX 8

static const char list[] = "mlp:784-1024-10,gpt:4,4,128,64@16@20,gpt:2,2,32,8,65,lenet@8,"
                           "cnn:3x8x8-conv4k3s2p1-bn-pool-fc8-fc3,resnet50:3x224x224,1000@32,vgg11";

START_TEST(test_models_and_their_data)
{
    static const struct train_model wanted[] = {
        {"mlp:784-1024-10", "random:4096,784,10", 64, 200, 1},
        {"gpt:4,4,128,64", "random-tokens:4096,64,256", 16, 20, 64},
        {"gpt:2,2,32,8,65", "random-tokens:4096,8,65", 64, 200, 8},
        {"lenet", "random:4096,1x28x28,10", 8, 200, 1},
        {"cnn:3x8x8-conv4k3s2p1-bn-pool-fc8-fc3", "random:4096,3x8x8,3", 64, 200, 1},
        {"resnet50:3x224x224,1000", "random:128,3x224x224,1000", 32, 200, 1},
        {"vgg11", "random:4096,3x32x32,10", 64, 200, 1},
    };
    struct train_model models[MAX];
    struct error err = {0};
    size_t count = 0;

    assert_ok(train_models_parse(list, 64, 200, 2, models, MAX, &count, &err));
    ck_assert_uint_eq(count, sizeof(wanted) / sizeof(wanted[0]));
    for (size_t i = 0; i < count; i++) {
        ck_assert_pstr_eq(models[i].spec, wanted[i].spec);
        ck_assert_pstr_eq(models[i].data, wanted[i].data);
        ck_assert_int_eq(models[i].batch_size, wanted[i].batch_size);
        ck_assert_int_eq(models[i].steps, wanted[i].steps);
        ck_assert_uint_eq(models[i].positions, wanted[i].positions);
    }
}
END_TEST

/* Data are whole batches of all ranks, at least two. */
START_TEST(test_whole_batches)
{
    struct train_model model;
    struct error err = {0};
    size_t count = 0;

    assert_ok(train_models_parse("linear:10-2", 96, 200, 3, &model, 1, &count, &err));
    ck_assert_pstr_eq(model.data, "random:4032,10,2");
    assert_ok(train_models_parse("linear:10-2@5000", 96, 200, 3, &model, 1, &count, &err));
    ck_assert_pstr_eq(model.data, "random:30000,10,2");
}
END_TEST

START_TEST(test_what_is_refused)
{
    struct train_model models[2];
    struct error err = {0};
    size_t count = 0;

    assert_fails(train_models_parse("", 1, 10, 1, models, 2, &count, &err), STATUS_INVALID, "none");
    assert_fails(train_models_parse("lenet,lenet,lenet", 1, 10, 1, models, 2, &count, &err),
                 STATUS_INVALID, "more than 2");
    assert_fails(train_models_parse("lenet@0", 1, 10, 1, models, 2, &count, &err), STATUS_INVALID,
                 "'0' is no batch size");
    assert_fails(train_models_parse("lenet@1@9", 1, 10, 1, models, 2, &count, &err), STATUS_INVALID,
                 "'9' is no number of steps");
    assert_fails(train_models_parse("gpt:4,4", 1, 10, 1, models, 2, &count, &err), STATUS_CONFIG,
                 "no sizes");
    assert_fails(train_models_parse("mlp", 1, 10, 1, models, 2, &count, &err), STATUS_CONFIG,
                 "no sizes");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("train_model", 0, TEST(test_models_and_their_data), TEST(test_whole_batches),
                       TEST(test_what_is_refused));
}
