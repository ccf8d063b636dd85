/*
 * Every architecture's parameters and buffers have PyTorch's names, shapes and order (hashes of its
 * lists, from experiments/peers/torch_models.py); its number of floating-point operations.
 */
#include "tests/support/support.h"
#include "worker/model/model.h"

#include <stdio.h>

static struct error err;

static const struct {
    const char *spec;
    size_t views, count;
    uint64_t hash;
    size_t buffers;
    uint64_t buffer_hash;
    uint64_t flops;
} tables[] = {
    {"lenet", 10, 61706, UINT64_C(0x90dd2bb9b5b867f2), 0, UINT64_C(0xcbf29ce484222325), 2499120},
    {"cnn:1x28x28-conv32-pool-conv64-bn-pool-fc128-bn-fc10", 12, 422026,
     UINT64_C(0x09d4ab358da65f95), 386, UINT64_C(0x0cd6c7106e54a1fa), 25446912},
    {"resnet18", 62, 11173962, UINT64_C(0x7523900868adbb60), 9620, UINT64_C(0x4dbc672cffd8687b),
     3332536320},
    {"resnet50", 161, 23520842, UINT64_C(0x758d423c41f2de09), 53173, UINT64_C(0x20d0c5ab8ee5b624),
     7786979328},
    {"resnet18:3x224x224,1000", 62, 11689512, UINT64_C(0x4124e03ab2211f38), 9620,
     UINT64_C(0x4dbc672cffd8687b), 10884440064},
    {"resnet50:3x224x224,1000", 161, 25557032, UINT64_C(0x0b34b6e63fb4c0c1), 53173,
     UINT64_C(0x20d0c5ab8ee5b624), 24535105536},
    {"vgg11", 22, 9750922, UINT64_C(0x641ef8230af6d6e6), 0, UINT64_C(0xcbf29ce484222325),
     919762944},
    {"vgg16", 32, 15245130, UINT64_C(0xda7db89659f9a337), 0, UINT64_C(0xcbf29ce484222325),
     1882355712},
    {"vgg11:3x224x224,1000", 22, 132863336, UINT64_C(0xa3edec1f7a5e6c49), 0,
     UINT64_C(0xcbf29ce484222325), 45654540288},
    {"mlp-bn:784-128-64-10", 10, 109770, UINT64_C(0x293c3f35e13be9b6), 386,
     UINT64_C(0x565475dfcc2c3246), 655104},
    {"gpt:4,4,128,64", 52, 834304, UINT64_C(0x7815c16f88da4c27), 0, UINT64_C(0xcbf29ce484222325),
     339738624},
    {"gpt:2,4,32,16,50257", 28, 1634208, UINT64_C(0x25e6c0702abacbea), 0,
     UINT64_C(0xcbf29ce484222325), 156945408},
};

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return hash;
}

/* FNV-1a over lines "name dimension dimension ..." */
static uint64_t hash_table(const struct tensor_table *t)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (size_t i = 0; i < t->length; i++) {
        hash = hash_text(hash, t->views[i].name);
        for (unsigned d = 0; d < t->views[i].dims; d++) {
            char number[32];

            (void)snprintf(number, sizeof(number), " %zu", t->views[i].shape[d]);
            hash = hash_text(hash, number);
        }
        hash = hash_text(hash, "\n");
    }
    return hash;
}

/* As PyTorch counts them: an int64 is one. */
static size_t count_elements(const struct tensor_table *t)
{
    size_t count = 0;

    for (size_t i = 0; i < t->length; i++)
        count += t->views[i].count / (t->views[i].kind == TENSOR_INT64 ? 2 : 1);
    return count;
}

START_TEST(test_tables)
{
    struct compute *compute = NULL;
    struct model *m = NULL;
    const struct tensor_table *state;
    struct tensor_table alone = {0};

    assert_ok(compute_open("cpu", 0, 1, &compute, &err));
    assert_ok(model_open(tables[_i].spec, compute, 1, &m, &err));
    state = model_state_table(m);
    ck_assert_uint_eq(model_table(m)->length, tables[_i].views);
    ck_assert_uint_eq(model_table(m)->count, tables[_i].count);
    ck_assert_uint_eq(hash_table(model_table(m)), tables[_i].hash);
    ck_assert_uint_eq(count_elements(model_buffer_table(m)), tables[_i].buffers);
    ck_assert_uint_eq(hash_table(model_buffer_table(m)), tables[_i].buffer_hash);
    ck_assert_uint_eq(count_elements(state), tables[_i].count + tables[_i].buffers);
    ck_assert_uint_eq(state->length, tables[_i].views + model_buffer_table(m)->length);
    ck_assert_uint_eq(model_flops(m), tables[_i].flops);
    model_close(m);
    compute_close(compute);
    assert_ok(model_read_table(tables[_i].spec, &alone, &err));
    ck_assert_uint_eq(hash_table(&alone), tables[_i].hash);
    tensor_table_release(&alone);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("model_tables", 60,
                       LOOP_TEST(test_tables, 0, sizeof(tables) / sizeof(tables[0])));
}
