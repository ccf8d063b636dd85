/* Model specs: what is read, and that everything else is refused with its position. */
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

static const struct {
    const char *text;
    const char *part;
} refused[] = {
    {"", "model '', position 1: expected 'mlp:', 'mlp-bn:' or 'linear:'"},
    {"mlp", "position 1: expected 'mlp:'"},
    {"MLP:1-2", "position 1"},
    {" mlp:1-2", "position 1"},
    {"resnet18", "model 'resnet18', position 1"},
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
    Suite *suite = suite_create("spec");
    TCase *tests = tcase_create("spec");

    tcase_add_test(tests, test_accepted);
    tcase_add_loop_test(tests, test_refused, 0, sizeof(refused) / sizeof(refused[0]));
    tcase_add_test(tests, test_layer_limit);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
