/*
 * Which files the names of experiments mean, and the folders that they get.
 */
#include "experiments/compare/experiment_set.h"
#include "tests/support/support.h"

#include "common/base/file.h"

#include <string.h>
#include <unistd.h>

static struct error err;
static struct text_list paths;

/* Two experiments that come with the programs; in the current folder a file of one's name, which a
 * script may have, and one without an extension. */
static const char *prepare(void)
{
    assert_ok(file_make_folder(support_path("bin"), &err));
    (void)support_write("bin/quickstart.yaml", "", 0);
    (void)support_write("bin/scaling.yaml", "", 0);
    (void)support_write("quickstart", "", 0);
    (void)support_write("mine", "", 0);
    ck_assert_int_eq(chdir(support_folder()), 0);
    return support_path("bin");
}

static void release(void)
{
    text_list_release(&paths);
}

START_TEST(test_names)
{
    static const char *const names[] = {"all", "mine", "other.yaml", "./quickstart2"};
    const char *const programs = prepare();

    assert_ok(experiment_set_find(names, 4, programs, &paths, &err));
    ck_assert_uint_eq(paths.length, 5);
    ck_assert_str_eq(paths.texts[0], support_path("bin/quickstart.yaml"));
    ck_assert_str_eq(paths.texts[1], support_path("bin/scaling.yaml"));
    ck_assert_str_eq(paths.texts[2], "mine");
    ck_assert_str_eq(paths.texts[3], "other.yaml");
    ck_assert_str_eq(paths.texts[4], "./quickstart2");
}
END_TEST

START_TEST(test_folders)
{
    static const struct {
        const char *path, *name;
    } cases[] = {{"a/lr-0.05.yaml", "lr-0.05"}, {"mine", "mine"}, {"a.b/.yaml", ".yaml"}};
    char name[256];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        experiment_set_name(cases[i].path, name, sizeof(name));
        ck_assert_str_eq(name, cases[i].name);
    }
}
END_TEST

START_TEST(test_same_folder)
{
    static const char *const names[] = {"scaling", "./scaling.yaml"};

    assert_fails(experiment_set_find(names, 2, prepare(), &paths, &err), STATUS_INVALID,
                 "bin/scaling.yaml' and './scaling.yaml' have the same name");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("compare experiment set", 30, CHECKED_FIXTURE(NULL, release),
                       TEST(test_names), TEST(test_folders), TEST(test_same_folder));
}
