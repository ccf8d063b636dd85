/*
 * Manifests: the generated lists, every kind of difference, random lists against a model with
 * linear search, and bytes that are not a list.
 */
#include "common/manifest/manifest.h"

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct error err;
static struct strbuf a = STRBUF_INIT;
static struct strbuf b = STRBUF_INIT;
static struct strbuf report = STRBUF_INIT;

static void release_all(void)
{
    strbuf_release(&a);
    strbuf_release(&b);
    strbuf_release(&report);
}

static size_t compare_lists(void)
{
    strbuf_reset(&report);
    return manifest_compare(a.text, 0, b.text, 2, &report);
}

static void add_model(struct strbuf *manifest, size_t hidden, bool swapped)
{
    struct tensor_table table = {0};
    const size_t weight[2] = {hidden, 784};
    const size_t bias[1] = {hidden};

    if (swapped)
        assert_ok(tensor_table_add(&table, "fc1.bias", 1, bias, &err));
    assert_ok(tensor_table_add(&table, "fc1.weight", 2, weight, &err));
    if (!swapped)
        assert_ok(tensor_table_add(&table, "fc1.bias", 1, bias, &err));
    assert_ok(tensor_table_add(&table, "scale", 0, NULL, &err));
    tensor_table_layout(&table);
    manifest_add_tensors(manifest, &table);
    tensor_table_release(&table);
}

START_TEST(made_lists)
{
    struct optimizer_config sgd = {.kind = OPTIMIZER_SGD, .learning_rate = 0.1, .momentum = 0.9};
    struct optimizer_config adam = {.kind = OPTIMIZER_ADAMW,
                                    .learning_rate = 1e-3,
                                    .weight_decay = 0.01,
                                    .beta1 = 0.9,
                                    .beta2 = 0.999,
                                    .epsilon = 1e-8};

    manifest_add(&a, "version", "%s", "0.1.0");
    manifest_add(&a, "odd\tfield\n", "%s", "odd\tvalue\nand more");
    add_model(&a, 128, false);
    ck_assert_str_eq(a.text, "version\t0.1.0\n"
                             "odd field \todd value and more\n"
                             "tensors\t3\n"
                             "tensor fc1.weight\t(128, 784) float32\n"
                             "tensor fc1.bias\t(128,) float32\n"
                             "tensor scale\t() float32\n");
    strbuf_reset(&a);
    manifest_add_optimizer(&a, &sgd);
    ck_assert_str_eq(a.text, "optimizer\tsgd\nlearning rate\t0.1\nweight decay\t0\n"
                             "momentum\t0.9\ndampening\t0\nnesterov\tfalse\n");
    strbuf_reset(&a);
    manifest_add_optimizer(&a, &adam);
    ck_assert_str_eq(a.text, "optimizer\tadamw\nlearning rate\t0.001\nweight decay\t0.01\n"
                             "beta1\t0.9\nbeta2\t0.999\nepsilon\t1e-08\n");
}
END_TEST

START_TEST(equal)
{
    add_model(&a, 128, false);
    add_model(&b, 128, false);
    ck_assert_uint_eq(compare_lists(), 0);
    ck_assert_str_eq(report.text, "");
}
END_TEST

START_TEST(every_difference)
{
    manifest_add(&a, "seed", "%d", 1);
    manifest_add(&b, "seed", "%d", 2);
    manifest_add(&a, "only a", "x");
    add_model(&a, 128, false);
    add_model(&b, 64, false);
    manifest_add(&b, "only b", "y");
    ck_assert_uint_eq(compare_lists(), 5);
    ck_assert_str_eq(report.text,
                     "seed: rank 0 has 1, rank 2 has 2\n"
                     "only a: rank 0 has x, rank 2 has nothing\n"
                     "tensor fc1.weight: rank 0 has (128, 784) float32, rank 2 has (64, 784) "
                     "float32\n"
                     "tensor fc1.bias: rank 0 has (128,) float32, rank 2 has (64,) float32\n"
                     "only b: rank 0 has nothing, rank 2 has y\n");
}
END_TEST

START_TEST(order_counts)
{
    add_model(&a, 128, false);
    add_model(&b, 128, true);
    ck_assert_uint_eq(compare_lists(), 1);
    ck_assert_str_eq(
        report.text,
        "order: field 2 of rank 0 is 'tensor fc1.weight', of rank 2 'tensor fc1.bias'\n");
}
END_TEST

START_TEST(many_differences)
{
    size_t lines = 0;

    for (int i = 0; i < 25; i++) {
        char field[16];

        (void)snprintf(field, sizeof(field), "f%d", i);
        manifest_add(&a, field, "1");
        manifest_add(&b, field, "2");
    }
    ck_assert_uint_eq(compare_lists(), 25);
    for (const char *p = report.text; *p; p++)
        lines += *p == '\n';
    ck_assert_uint_eq(lines, 21);
    ck_assert_ptr_nonnull(strstr(report.text, "\nand 5 more\n"));
}
END_TEST

static unsigned random_below(unsigned n)
{
    return (unsigned)(support_random() * n);
}

/* Lists over fields f0..f7, each with value 0, 1, 2 or absent; the model counts by position. */
START_TEST(random_lists)
{
    for (int round = 0; round < 2000; round++) {
        int values[2][8];
        struct strbuf *lists[2] = {&a, &b};
        size_t expected = 0;

        for (int side = 0; side < 2; side++) {
            strbuf_reset(lists[side]);
            for (int f = 0; f < 8; f++) {
                char field[8];

                values[side][f] = (int)random_below(4) - 1;
                (void)snprintf(field, sizeof(field), "f%d", f);
                if (values[side][f] >= 0)
                    manifest_add(lists[side], field, "%d", values[side][f]);
            }
        }
        for (int f = 0; f < 8; f++)
            expected += values[0][f] != values[1][f];
        ck_assert_uint_eq(compare_lists(), expected);
    }
}
END_TEST

START_TEST(hostile_lists)
{
    static const char *const texts[] = {
        "",      "\n",       "\t",          "\t\t\n\n\t", "no tab",     "field\tvalue without end",
        "\n\n",  "f\tv\nf",  "f\t\x1b[31m", "\xff\xfe\t", "f\tv\nf\tw", "a\t1\na\t2\n",
        "f\r\n", "tensors\t"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        for (size_t j = 0; j < sizeof(texts) / sizeof(texts[0]); j++) {
            size_t count;

            strbuf_reset(&report);
            count = manifest_compare(texts[i], 0, texts[j], 1, &report);
            ck_assert((count == 0) == (report.length == 0));
            if (i == j && !strstr(texts[i], "\nf") && !strstr(texts[i], "\na"))
                ck_assert_uint_eq(count, 0);
            for (const char *p = report.text; *p; p++)
                ck_assert(*p == '\n' || (unsigned char)*p >= ' ');
        }
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("manifest", 0, CHECKED_FIXTURE(NULL, release_all), TEST(made_lists),
                       TEST(equal), TEST(every_difference), TEST(order_counts),
                       TEST(many_differences), TEST(random_lists), TEST(hostile_lists));
}
