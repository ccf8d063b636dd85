/*
 * The flattened YAML: examples, the rejected constructs with their lines, limits, and truncation at
 * every byte.
 */
#include "common/option/option.h"

#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct yaml_file file;
static struct error err;

static enum status parse(const char *text)
{
    yaml_release(&file);
    return yaml_parse("run.yaml", text, strlen(text), &file, &err);
}

static void check_scalar(size_t index, const char *path, const char *value, unsigned line)
{
    ck_assert_uint_lt(index, file.length);
    ck_assert_str_eq(file.scalars[index].path, path);
    ck_assert_str_eq(file.scalars[index].value, value);
    ck_assert_uint_eq(file.scalars[index].line, line);
}

static const char example[] = "# an experiment\n"
                              "name: digits\n"
                              "modes:\n"
                              "  - name: ring\n"
                              "    options: {backend: ring, streams: 2}\n"
                              "  - name: 'no'\n"
                              "    list: [1, [2, 3]]\n"
                              "empty:\n"
                              "text: |\n"
                              "  two\n"
                              "  lines\n"
                              "last: \"\\u00e9\"\n";

START_TEST(nested)
{
    assert_ok(parse(example));
    ck_assert_str_eq(file.name, "run.yaml");
    ck_assert_uint_eq(file.length, 11);
    check_scalar(0, "name", "digits", 2);
    check_scalar(1, "modes.0.name", "ring", 4);
    check_scalar(2, "modes.0.options.backend", "ring", 5);
    check_scalar(3, "modes.0.options.streams", "2", 5);
    check_scalar(4, "modes.1.name", "no", 6);
    check_scalar(5, "modes.1.list.0", "1", 7);
    check_scalar(6, "modes.1.list.1.0", "2", 7);
    check_scalar(7, "modes.1.list.1.1", "3", 7);
    check_scalar(8, "empty", "", 8);
    check_scalar(9, "text", "two\nlines\n", 9);
    check_scalar(10, "last", "\xc3\xa9", 12);
}
END_TEST

START_TEST(nothing)
{
    static const char *const texts[] = {"", "\n\n", "# only a comment\n", "---\n{}\n", "{}"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_ok(parse(texts[i]));
        ck_assert_uint_eq(file.length, 0);
    }
}
END_TEST

static const struct {
    const char *text;
    const char *error;
} refused[] = {
    {"a: 1\nb: 2\na: 3\n", "run.yaml:3: 'a' is given twice"},
    {"a: {x: 1}\na: {y: 1}\n", "run.yaml:2: 'a' is given twice"},
    {"a:\n - x: 1\n   x: 2\n", "run.yaml:3: 'a.0.x' is given twice"},
    {"a: &x 1\n", "run.yaml:1: anchors are not supported"},
    {"a: &x {b: 1}\n", "run.yaml:1: anchors are not supported"},
    {"a: &x [1]\n", "run.yaml:1: anchors are not supported"},
    {"b: 1\na: *x\n", "run.yaml:2: aliases are not supported"},
    {"*x : 1\n", "run.yaml:1: aliases are not supported"},
    {"a: !!int 3\n", "run.yaml:1: tags are not supported"},
    {"a: !thing {b: 1}\n", "run.yaml:1: tags are not supported"},
    {"a: 1\n---\nb: 2\n", "run.yaml:2: a second document"},
    {"- a\n- b\n", "run.yaml:1: the file must be a mapping"},
    {"text\n", "run.yaml:1: the file must be a mapping"},
    {"a.b: 1\n", "run.yaml:1: a key must have 1 to 128 bytes and no dot"},
    {"\"\": 1\n", "run.yaml:1: a key must have 1 to 128 bytes and no dot"},
    {"\"x\\0y\": 1\n", "run.yaml:1: a key must have"},
    {"[a, b]: 1\n", "run.yaml:1: a key must be a plain text"},
    {"{a: 1}: 1\n", "run.yaml:1: a key must be a plain text"},
    {"a: \"x\\0y\"\n", "run.yaml:1: a value holds a NUL byte"},
    {"a: 1\nb: []\n", "run.yaml:2: 'b' is empty"},
    {"a: {b: {}}\n", "run.yaml:1: 'a.b' is empty"},
    {"a: [1, 2\nb: 3\n", "run.yaml:2: "},
    {"a: 'open\n", "run.yaml:2: found unexpected end of stream"},
    {"a: 1\n\tb: 2\n", "run.yaml:2: "},
    {"a: 1\nb: \x01\n", "run.yaml:2: control characters are not allowed"},
    {"a: 1\nb: \xff\xff\n", "run.yaml:2: "},
    {"a: [[[[[[[[1]]]]]]]]\n", "run.yaml:1: nested deeper than 8 levels"},
};

START_TEST(rejected_constructs)
{
    assert_fails(parse(refused[_i].text), STATUS_CONFIG, refused[_i].error);
    ck_assert_ptr_null(file.scalars);
}
END_TEST

START_TEST(limits)
{
    struct strbuf text = STRBUF_INIT;
    char *big;

    for (int i = 0; i < 4096; i++)
        strbuf_addf(&text, "k%d: %d\n", i, i);
    assert_ok(parse(text.text));
    ck_assert_uint_eq(file.length, 4096);
    check_scalar(4095, "k4095", "4095", 4096);
    strbuf_add(&text, "more: 1\n");
    assert_fails(parse(text.text), STATUS_CONFIG, "run.yaml:4097: more than 4096 values");
    assert_ok(parse("a: [[[[[[[1]]]]]]]\n")); /* with the mapping: 8 levels */
    check_scalar(0, "a.0.0.0.0.0.0.0", "1", 1);
    big = calloc(1, (1 << 20) + 2);
    ck_assert_ptr_nonnull(big);
    memset(big, '\n', (1 << 20) + 1);
    assert_fails(parse(big), STATUS_CONFIG, "run.yaml: 1048577 bytes are more than the 1048576");
    big[1 << 20] = '\0';
    assert_ok(parse(big));
    free(big);
    strbuf_reset(&text);
    for (int i = 0; i < 128; i++)
        strbuf_add(&text, "k");
    strbuf_add(&text, ": 1\n");
    assert_ok(parse(text.text));
    strbuf_reset(&text);
    for (int i = 0; i < 129; i++)
        strbuf_add(&text, "k");
    strbuf_add(&text, ": 1\n");
    assert_fails(parse(text.text), STATUS_CONFIG, "a key must have 1 to 128 bytes");
    strbuf_release(&text);
}
END_TEST

/* Cut anywhere, the text gives a prefix of the scalars or an error with a line; never a crash. */
START_TEST(truncated)
{
    for (size_t size = 0; size < sizeof(example); size++) {
        enum status status;

        yaml_release(&file);
        status = yaml_parse("run.yaml", example, size, &file, &err);
        if (status != STATUS_OK)
            ck_assert_ptr_nonnull(strstr(err.text, "run.yaml:"));
        for (size_t i = 0; i < file.length; i++)
            ck_assert_uint_ge(file.scalars[i].line, 1);
        ck_assert_uint_le(file.length, 11);
    }
}
END_TEST

START_TEST(from_disk)
{
    assert_ok(yaml_read(support_write("a.yaml", "x: 1\n", 5), &file, &err));
    check_scalar(0, "x", "1", 1);
    yaml_release(&file);
    assert_fails(yaml_read("/nonexistent.yaml", &file, &err), STATUS_NOT_FOUND, "/nonexistent");
    assert_fails(yaml_read("/tmp", &file, &err), STATUS_IO, "folder");
    assert_fails(yaml_read("/dev/zero", &file, &err), STATUS_DATA, "1048576 bytes");
}
END_TEST

static void release_file(void)
{
    yaml_release(&file);
}

int main(void)
{
    return SUPPORT_RUN("yaml", 0, CHECKED_FIXTURE(NULL, release_file), TEST(nested), TEST(nothing),
                       LOOP_TEST(rejected_constructs, 0, sizeof(refused) / sizeof(refused[0])),
                       TEST(limits), TEST(truncated), TEST(from_disk));
}
