/*
 * Random operations through three handles in turn, against a model that is an array.
 */
#include "tests/common/store/store_suite.h"

#include "common/base/parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { model_keys = 12, model_text = 40 };

struct model {
    struct {
        bool there;
        bool counter;
        char value[model_text];
    } keys[model_keys];
};

static unsigned random_below(unsigned below)
{
    return (unsigned)(support_random() * below);
}

static void random_text(char *text)
{
    static const char *const texts[] = {"", "a", "b", "0", "1", "17", "-4", "long enough text"};

    (void)snprintf(text, model_text, "%s", texts[random_below(8)]);
}

static void model_add(struct model *m, unsigned k, struct store *store, const char *key)
{
    struct error err = {0};
    const int64_t delta = (int64_t)random_below(100) - 50;
    int64_t old = 0;
    int64_t sum = -1;

    if (m->keys[k].there && !m->keys[k].counter) {
        assert_fails(store_add(store, key, delta, &sum, &err), STATUS_DATA, "not a counter");
        return;
    }
    if (m->keys[k].there)
        ck_assert(parse_int64(m->keys[k].value, &old));
    assert_ok(store_add(store, key, delta, &sum, &err));
    ck_assert_int_eq(sum, old + delta);
    m->keys[k].there = true;
    m->keys[k].counter = true;
    (void)snprintf(m->keys[k].value, model_text, "%" PRId64, sum);
}

static void model_compare_set(struct model *m, unsigned k, struct store *store, const char *key)
{
    char expected[model_text];
    char desired[model_text];

    random_text(expected);
    random_text(desired);
    if (m->keys[k].there && random_below(2))
        (void)snprintf(expected, sizeof(expected), "%s", m->keys[k].value);
    if (m->keys[k].there ? strcmp(m->keys[k].value, expected) == 0 : expected[0] == '\0') {
        check_compare_set(store, key, expected, desired, desired);
        m->keys[k].there = true;
        m->keys[k].counter = false;
        (void)snprintf(m->keys[k].value, model_text, "%s", desired);
    } else {
        check_compare_set(store, key, expected, desired,
                          m->keys[k].there ? m->keys[k].value : expected);
    }
}

static void model_get(struct model *m, unsigned k, struct store *store, const char *key)
{
    struct error err = {0};
    char *value = NULL;
    size_t size;

    if (m->keys[k].there)
        check_value(store, key, m->keys[k].value);
    else
        assert_fails(store_get(store, key, 0, &value, &size, &err), STATUS_TIMEOUT, key);
}

static void model_wait(const struct model *m, struct store *store)
{
    struct error err = {0};
    const unsigned first = random_below(model_keys);
    const unsigned count = random_below(model_keys - first) + 1;
    const char *keys[model_keys];
    char names[model_keys][16];
    unsigned missing = 0;
    char part[64];

    for (unsigned i = 0; i < count; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "key%u", first + i);
        keys[i] = names[i];
        missing += !m->keys[first + i].there;
    }
    (void)snprintf(part, sizeof(part), "%u of %u store keys", missing, count);
    if (missing == 0)
        assert_ok(store_wait(store, keys, count, 0, &err));
    else
        assert_fails(store_wait(store, keys, count, 0, &err), STATUS_TIMEOUT, part);
}

static void model_count(const struct model *m, struct store *store)
{
    struct error err = {0};
    int64_t count = -1;
    int64_t wanted = 0;

    for (unsigned i = 0; i < model_keys; i++)
        wanted += m->keys[i].there;
    assert_ok(store_num_keys(store, &count, &err));
    ck_assert_int_eq(count, wanted);
}

START_TEST(random_operations_against_a_model)
{
    struct error err = {0};
    struct model m = {0};
    struct job job;

    open_job(&job, 3, 10000);
    for (int step = 0; step < 1500; step++) {
        struct store *store = job.stores[random_below(3)];
        const unsigned k = random_below(model_keys);
        char key[16];
        bool found;

        (void)snprintf(key, sizeof(key), "key%u", k);
        switch (random_below(7)) {
        case 0:
            m.keys[k].there = true;
            m.keys[k].counter = false;
            random_text(m.keys[k].value);
            assert_ok(store_set(store, key, m.keys[k].value, strlen(m.keys[k].value), &err));
            break;
        case 1:
            model_get(&m, k, store, key);
            break;
        case 2:
            model_add(&m, k, store, key);
            break;
        case 3:
            model_compare_set(&m, k, store, key);
            break;
        case 4:
            assert_ok(store_delete(store, key, &found, &err));
            ck_assert(found == m.keys[k].there);
            m.keys[k].there = false;
            break;
        case 5:
            model_wait(&m, store);
            break;
        default:
            model_count(&m, store);
        }
    }
    close_job(&job);
}
END_TEST

TCase *model_cases(void)
{
    TCase *cases = tcase_create("model");

    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, random_operations_against_a_model);
    return cases;
}
