/*
 * safetensors: PyTorch's parity files, the exact bytes of a small file, hostile headers one by one,
 * every prefix and extension of a valid file, failing allocations and a full disk.
 */
#include "common/base/file.h"
#include "common/base/memory.h"
#include "common/checkpoint/safetensors.h"
#include "tests/support/support.h"

#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define FILE_BYTES_MAX ((size_t)1 << 20)

static struct error err;

/* Model order weight, bias, other; in the slab the last comes first. */
static struct tensor_view small_views[] = {
    {.name = "fc1.weight", .dims = 2, .shape = {2, 3}, .count = 6, .offset = 3},
    {.name = "fc1.bias", .dims = 1, .shape = {2}, .count = 2, .offset = 1},
    {.name = "scale", .dims = 0, .count = 1, .offset = 0},
};
static const struct tensor_table small_table = {
    .views = small_views, .length = 3, .capacity = 3, .count = 9};
static const float small_slab[9] = {0.5F, 1, 2, 3, 4, 5, 6, 7, 8};

/* A file of this header text and `data_bytes` zero bytes; *ret_size is its size. */
static unsigned char *make_file(const char *header, size_t header_bytes, size_t data_bytes,
                                size_t *ret_size)
{
    unsigned char *file = calloc(1, 8 + header_bytes + data_bytes + 1);

    ck_assert_ptr_nonnull(file);
    for (unsigned i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + 8, header, header_bytes);
    *ret_size = 8 + header_bytes + data_bytes;
    return file;
}

static enum status parse_text(const char *header, size_t data_bytes, struct safetensors *ret)
{
    size_t size;
    unsigned char *file = make_file(header, strlen(header), data_bytes, &size);
    enum status status = safetensors_parse("memory", file, size, ret, &err);

    free(file);
    return status;
}

START_TEST(reads_pytorch_files)
{
    const struct safetensors_entry *e;
    struct safetensors s;
    float x[10030];
    double sum = 0;
    int64_t label;

    assert_ok(safetensors_read(support_source("tests/data/parity/linear10_w4.data.safetensors"),
                               FILE_BYTES_MAX, &s, &err));
    ck_assert_uint_eq(s.length, 2);
    ck_assert_str_eq(safetensors_metadata(&s, "model"), "linear10");
    ck_assert_ptr_null(safetensors_metadata(&s, "no such key"));
    ck_assert_ptr_null(safetensors_find(&s, "z"));
    e = safetensors_find(&s, "x");
    ck_assert_ptr_nonnull(e);
    ck_assert_uint_eq(e->dims, 2);
    ck_assert_uint_eq(e->shape[0], 1003);
    ck_assert_uint_eq(e->shape[1], 10);
    assert_ok(safetensors_copy_floats(&s, e, x, &err));
    for (size_t i = 0; i < 10030; i++)
        sum += (double)x[i];
    ck_assert(x[0] == -1.5255959033966064F && x[10029] == 0.4285023808479309F);
    ck_assert_double_eq_tol(sum, -33.337727440767594, 1e-9); /* numpy's sum in double */
    e = safetensors_find(&s, "y");
    ck_assert_str_eq(e->dtype, "I64");
    memcpy(&label, e->data + 8 * 1002, sizeof(label));
    ck_assert_int_eq(label, 7);
    assert_fails(safetensors_copy_floats(&s, e, x, &err), STATUS_DATA, "'y' is I64, not F32");
    safetensors_release(&s);
}
END_TEST

START_TEST(writes_these_bytes)
{
    static const char header[] =
        "{\"__metadata__\":{\"step\":\"7\",\"note\":\"a \\\"b\\\"\"},"
        "\"fc1.bias\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
        "\"fc1.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
        "\"scale\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[32,36]}}";
    static const float data[] = {1, 2, 3, 4, 5, 6, 7, 8, 0.5F};
    const char *const metadata[] = {"step", "7", "note", "a \"b\""};
    const char *path = support_path("small.safetensors");
    size_t padded = (sizeof(header) - 1 + 7) / 8 * 8;
    unsigned char *wanted;
    size_t wanted_size;
    char *got;
    size_t size;

    assert_ok(safetensors_save_slab(path, &small_table, small_slab, metadata, 2, &err));
    assert_ok(file_read(path, FILE_BYTES_MAX, &got, &size, &err));
    wanted = make_file("", 0, padded + sizeof(data), &wanted_size);
    wanted[0] = (unsigned char)(padded & 0xff);
    wanted[1] = (unsigned char)(padded >> 8);
    memset(wanted + 8, ' ', padded);
    memcpy(wanted + 8, header, sizeof(header) - 1);
    memcpy(wanted + 8 + padded, data, sizeof(data));
    ck_assert_uint_eq(size, wanted_size);
    ck_assert_mem_eq(got, wanted, size);
    free(got);
    free(wanted);
}
END_TEST

START_TEST(round_trip)
{
    const char *const metadata[] = {"step", "1000", "caf\xc3\xa9", "line\nbreak"};
    const char *path = support_path("round.safetensors");
    struct safetensors s;
    float slab[9] = {0};

    assert_ok(safetensors_save_slab(path, &small_table, small_slab, metadata, 2, &err));
    assert_ok(safetensors_read(path, FILE_BYTES_MAX, &s, &err));
    assert_ok(safetensors_load_slab(&s, &small_table, slab, &err));
    ck_assert_mem_eq(slab, small_slab, sizeof(slab));
    ck_assert_str_eq(safetensors_metadata(&s, "caf\xc3\xa9"), "line\nbreak");
    safetensors_release(&s);
    assert_fails(safetensors_read(path, 64, &s, &err), STATUS_DATA, "more than the 64");
}
END_TEST

START_TEST(empty_files)
{
    static const struct tensor_table nothing = {0};
    static const unsigned char empty[16] = {8,   0,   0,   0,   0,   0,   0,   0,
                                            '{', '}', ' ', ' ', ' ', ' ', ' ', ' '};
    const char *path = support_path("empty.safetensors");
    struct safetensors s;
    char *got;
    size_t size;

    assert_ok(safetensors_parse("memory", empty, sizeof(empty), &s, &err));
    ck_assert_uint_eq(s.length, 0);
    assert_ok(safetensors_load_slab(&s, &nothing, NULL, &err));
    safetensors_release(&s);
    assert_ok(safetensors_save_slab(path, &nothing, NULL, NULL, 0, &err));
    assert_ok(file_read(path, FILE_BYTES_MAX, &got, &size, &err));
    ck_assert_uint_eq(size, sizeof(empty));
    ck_assert_mem_eq(got, empty, size);
    free(got);
    safetensors_release(NULL);
}
END_TEST

#define TENSOR(shape, begin_end)                                                                   \
    "{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" begin_end "}"

/* Unusual files that the format allows. */
START_TEST(unusual_files_are_valid)
{
    static const struct {
        const char *header;
        size_t data_bytes;
    } cases[] = {
        {"  \n{}", 0},                                 /* leading white space */
        {"{\"a\":" TENSOR("[]", "[0,4]") "}", 4},      /* a scalar */
        {"{\"a\":" TENSOR("[3,0,2]", "[0,0]") "}", 0}, /* an empty tensor */
        {"{\"b\":" TENSOR("[1]", "[4,8]") ",\"a\":" TENSOR("[1]", "[0,4]") "}", 8}, /* any order */
        {"{\"b\":" TENSOR("[1]", "[0,4]") ",\"e\":" TENSOR("[0]", "[0,0]") "}", 4},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1},
        {"{\"a\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3],\"new\":1}}", 3},
        {"{\"__metadata__\":{}}", 0},
    };
    struct safetensors s;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_ok(parse_text(cases[i].header, cases[i].data_bytes, &s));
        safetensors_release(&s);
    }
}
END_TEST

struct hostile {
    const char *header;
    size_t data_bytes;
    enum status status;
    const char *part; /* of the message */
};

static const struct hostile hostile_cases[] = {
    {"", 0, STATUS_DATA, "not valid JSON"},
    {"[]", 0, STATUS_DATA, "not a JSON object"},
    {"{", 0, STATUS_DATA, "not valid JSON"},
    {"{} x", 0, STATUS_DATA, "not valid JSON"},
    {"{}", 1, STATUS_DATA, "1 trailing bytes"},
    {"{\"a\xff\":1}", 0, STATUS_DATA, "decode byte 0xff"},
    {"{\"a\":" TENSOR("[1]", "[0,4]") ",\"a\":" TENSOR("[1]", "[4,8]") "}", 8, STATUS_DATA,
     "duplicate"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
     STATUS_DATA, "duplicate"},
    {"{\"a\":3}", 0, STATUS_DATA, "'a' is not a JSON object"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, STATUS_DATA, "'a' has no dtype"},
    {"{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, STATUS_DATA, "'F33'"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, STATUS_DATA, "'a' has no shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, STATUS_DATA, "data_offsets"},
    {"{\"a\":" TENSOR("[1.0]", "[0,4]") "}", 4, STATUS_DATA, "dimension 0"},
    {"{\"a\":" TENSOR("[2,-1]", "[0,4]") "}", 4, STATUS_DATA, "dimension 1"},
    {"{\"a\":" TENSOR("[\"1\"]", "[0,4]") "}", 4, STATUS_DATA, "dimension 0"},
    {"{\"a\":" TENSOR("[18446744073709551614]", "[0,4]") "}", 4, STATUS_DATA, "big"},
    {"{\"a\":" TENSOR("[9223372036854775807,3]", "[0,4]") "}", 4, STATUS_DATA, "overflows"},
    {"{\"a\":" TENSOR("[4611686018427387904,4]", "[0,0]") "}", 0, STATUS_DATA, "overflows"},
    {"{\"a\":" TENSOR("[4611686018427387904]", "[0,0]") "}", 0, STATUS_DATA, "overflows"},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, STATUS_DATA, "12 bits"},
    {"{\"a\":" TENSOR("[1,1,1,1,1,1,1]", "[0,4]") "}", 4, STATUS_UNSUPPORTED, "7 dimensions"},
    {"{\"a\":" TENSOR("[2]", "[0,4]") "}", 4, STATUS_DATA, "needs 8 bytes"},
    {"{\"a\":" TENSOR("[1]", "[0,4]") "}", 3, STATUS_DATA, "truncated"},
    {"{\"a\":" TENSOR("[1]", "[0,4]") "}", 5, STATUS_DATA, "1 trailing bytes"},
    {"{\"a\":" TENSOR("[1]", "[8,4]") "}", 8, STATUS_DATA, "[8, 4]"},
    {"{\"a\":" TENSOR("[1]", "[-4,0]") "}", 4, STATUS_DATA, "data_offsets"},
    {"{\"a\":" TENSOR("[1]", "[0,4,8]") "}", 8, STATUS_DATA, "data_offsets"},
    {"{\"a\":" TENSOR("[1]", "[0,9223372036854775807]") "}", 4, STATUS_DATA, "leave the 4 bytes"},
    {"{\"a\":" TENSOR("[1]", "[4,8]") "}", 8, STATUS_DATA, "4 bytes before tensor 'a'"},
    {"{\"a\":" TENSOR("[2]", "[0,8]") ",\"b\":" TENSOR("[2]", "[4,12]") "}", 12, STATUS_DATA,
     "'b' overlaps tensor 'a'"},
    {"{\"a\":" TENSOR("[1]", "[0,4]") ",\"b\":" TENSOR("[1]", "[0,4]") "}", 4, STATUS_DATA,
     "overlaps"},
    {"{\"a\":" TENSOR("[1]", "[0,4]") ",\"b\":" TENSOR("[1]", "[8,12]") "}", 12, STATUS_DATA,
     "4 bytes before tensor 'b'"},
    {"{\"__metadata__\":3}", 0, STATUS_DATA, "__metadata__ is not"},
    {"{\"__metadata__\":{\"k\":1}}", 0, STATUS_DATA, "'k' is not a string"},
    {"{\"a\\u0000b\":" TENSOR("[]", "[0,4]") "}", 4, STATUS_DATA, "not valid JSON"},
};

START_TEST(malformed_files_fail)
{
    const struct hostile *c = &hostile_cases[_i];
    struct safetensors s;

    assert_fails(parse_text(c->header, c->data_bytes, &s), c->status, c->part);
    assert_fails(parse_text(c->header, c->data_bytes, &s), c->status,
                 "memory"); /* names the file */
}
END_TEST

START_TEST(wrong_header_lengths_fail)
{
    unsigned char file[32] = {0};
    struct safetensors s;

    assert_fails(safetensors_parse("f", file, 0, &s, &err), STATUS_DATA, "0 bytes, too short");
    assert_fails(safetensors_parse("f", file, 7, &s, &err), STATUS_DATA, "7 bytes, too short");
    assert_fails(safetensors_parse("f", file, 8, &s, &err), STATUS_DATA, "not valid JSON");
    file[0] = 25; /* one more than there is */
    assert_fails(safetensors_parse("f", file, sizeof(file), &s, &err), STATUS_DATA, "truncated");
    memset(file, 0xff, 8);
    assert_fails(safetensors_parse("f", file, sizeof(file), &s, &err), STATUS_DATA,
                 "18446744073709551615 bytes");
    memset(file, 0, 8);
    file[0] = 0x01; /* 100,000,001 is 0x05f5e101 */
    file[1] = 0xe1;
    file[2] = 0xf5;
    file[3] = 0x05;
    assert_fails(safetensors_parse("f", file, sizeof(file), &s, &err), STATUS_DATA,
                 "100000001 bytes, more than");
    assert_fails(safetensors_read("/nowhere/x", 1, &s, &err), STATUS_NOT_FOUND, "/nowhere/x");
}
END_TEST

/* No prefix of a valid file is valid, and no extension. */
START_TEST(every_wrong_length_fails)
{
    const char *path = support_path("cut.safetensors");
    struct safetensors s;
    char *file;
    size_t size;

    assert_ok(safetensors_save_slab(path, &small_table, small_slab, NULL, 0, &err));
    assert_ok(file_read(path, FILE_BYTES_MAX, &file, &size, &err));
    for (size_t cut = 0; cut <= size + 1; cut++) { /* file_read ends its buffer with a NUL */
        enum status status = safetensors_parse("cut", file, cut, &s, &err);

        ck_assert_msg((status == STATUS_OK) == (cut == size), "%zu of %zu bytes: %s", cut, size,
                      status_name(status));
        if (status == STATUS_OK)
            safetensors_release(&s);
    }
    free(file);
}
END_TEST

START_TEST(values_that_are_not_finite_fail)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const char *const parts[] = {"'fc1.weight': element 4 is not a number",
                                        "'fc1.weight': element 4 is infinite",
                                        "'fc1.weight': element 4 is infinite"};
    const char *path = support_path("nan.safetensors");
    float slab[9];
    float loaded[9] = {0};
    static const float untouched[9];
    struct safetensors s;

    for (size_t i = 0; i < 3; i++) {
        memcpy(slab, small_slab, sizeof(slab));
        slab[3 + 4] = bad[i];
        assert_ok(safetensors_save_slab(path, &small_table, slab, NULL, 0, &err));
        assert_ok(safetensors_read(path, FILE_BYTES_MAX, &s, &err));
        assert_fails(safetensors_load_slab(&s, &small_table, loaded, &err), STATUS_DATA, parts[i]);
        assert_fails(safetensors_copy_floats(&s, safetensors_find(&s, "fc1.weight"), loaded, &err),
                     STATUS_DATA, path);
        ck_assert_mem_eq(loaded, untouched, sizeof(loaded));
        safetensors_release(&s);
    }
}
END_TEST

START_TEST(lists_every_difference)
{
    static const char header[] = "{\"fc1.weight\":" TENSOR(
        "[3,2]",
        "[0,24]") ","
                  "\"fc1.bias\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[24,32]},"
                  "\"extra\":" TENSOR("[]", "[32,36]") "}";
    float slab[9] = {0};
    struct safetensors s;

    assert_ok(parse_text(header, 36, &s));
    assert_fails(safetensors_load_slab(&s, &small_table, slab, &err), STATUS_MISMATCH,
                 "(4 differences)");
    ck_assert_ptr_nonnull(strstr(err.text, "'fc1.weight' is (3, 2), the model has (2, 3)"));
    ck_assert_ptr_nonnull(strstr(err.text, "'fc1.bias' is I32, not F32"));
    ck_assert_ptr_nonnull(strstr(err.text, "'scale' is missing"));
    ck_assert_ptr_nonnull(strstr(err.text, "'extra' is not in the model"));
    safetensors_release(&s);
}
END_TEST

/* A PyTorch state dict's dtypes: one tensor of each, and a count. */
static struct tensor_view mixed_views[] = {
    {.name = "bf16", .dims = 1, .shape = {2}, .count = 2, .offset = 6},
    {.name = "f16", .dims = 1, .shape = {2}, .count = 2, .offset = 4},
    {.name = "f64", .dims = 1, .shape = {2}, .count = 2, .offset = 2},
    {.name = "tracked", .dims = 0, .kind = TENSOR_INT64, .count = 2, .offset = 0},
};
static const struct tensor_table mixed_table = {
    .views = mixed_views, .length = 4, .capacity = 4, .count = 8};

#define ENTRY(name, dtype, shape, from_to)                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" from_to "}"

static void parse_mixed(const char *header, const void *data, size_t data_bytes,
                        struct safetensors *ret)
{
    size_t size;
    unsigned char *file = make_file(header, strlen(header), data_bytes, &size);

    memcpy(file + size - data_bytes, data, data_bytes);
    assert_ok(safetensors_parse("memory", file, size, ret, &err));
    free(file);
}

START_TEST(float_dtypes_are_converted)
{
    static const char header[] =
        "{" ENTRY("bf16", "BF16", "[2]", "[0,4]") "," ENTRY("f16", "F16", "[2]", "[4,8]") "," ENTRY(
            "f64", "F64", "[2]", "[8,24]") "," ENTRY("tracked", "I64", "[]", "[24,32]") "}";
    struct {
        uint16_t bf16[2], f16[2];
        double f64[2];
        int64_t tracked;
    } data = {{0x3fc0, 0xc2f7}, {0x3e00, 0x8001}, {0.1, -1e-300}, (INT64_C(1) << 24) + 1};
    const float wanted[6] = {0.1F, -0.0F, 1.5F, -0x1p-24F, 1.5F, -123.5F};
    const char *path = support_path("mixed.safetensors");
    struct safetensors s, again;
    float slab[8];
    char text[128];

    parse_mixed(header, &data, sizeof(data), &s);
    assert_ok(safetensors_load_slab(&s, &mixed_table, slab, &err));
    ck_assert_mem_eq(slab + 2, wanted, sizeof(wanted));
    ck_assert_int_eq(tensor_get_int64(slab), data.tracked); /* no float32 is */
    safetensors_conversions(&s, text, sizeof(text));
    ck_assert_str_eq(text, "1 of F64, 1 of F16, 1 of BF16");
    assert_ok(safetensors_save_slab(path, &mixed_table, slab, NULL, 0, &err));
    assert_ok(safetensors_read(path, FILE_BYTES_MAX, &again, &err));
    ck_assert_str_eq(safetensors_find(&again, "tracked")->dtype, "I64");
    ck_assert_mem_eq(safetensors_find(&again, "tracked")->data, &data.tracked, 8);
    safetensors_conversions(&again, text, sizeof(text));
    ck_assert_str_eq(text, "");
    safetensors_release(&again);
    safetensors_release(&s);
    data.f64[1] = 1e300;
    parse_mixed(header, &data, sizeof(data), &s);
    assert_fails(safetensors_load_slab(&s, &mixed_table, slab, &err), STATUS_DATA,
                 "'f64': element 1 is infinite");
    safetensors_release(&s);
}
END_TEST

/* Older files of ours have counts as float32. */
START_TEST(counts_of_older_files)
{
    static const char header[] = "{" ENTRY("tracked", "F32", "[]", "[0,4]") "}";
    static struct tensor_view view = {
        .name = "tracked", .dims = 0, .kind = TENSOR_INT64, .count = 2, .offset = 0};
    static const struct tensor_table table = {
        .views = &view, .length = 1, .capacity = 1, .count = 2};
    static const float refused[] = {2.5F, INFINITY, NAN, 0x1p63F};
    const float count = 0x1p24F;
    struct safetensors s;
    float slab[2];

    parse_mixed(header, &count, sizeof(count), &s);
    assert_ok(safetensors_load_slab(&s, &table, slab, &err));
    ck_assert_int_eq(tensor_get_int64(slab), INT64_C(1) << 24);
    safetensors_release(&s);
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        parse_mixed(header, &refused[i], sizeof(refused[i]), &s);
        assert_fails(safetensors_load_slab(&s, &table, slab, &err), STATUS_DATA,
                     "not a whole number");
        safetensors_release(&s);
    }
}
END_TEST

static enum status save_and_load(const char *path, struct safetensors *ret)
{
    const char *const metadata[] = {"step", "7"};
    enum status status = safetensors_save_slab(path, &small_table, small_slab, metadata, 1, &err);

    return status == STATUS_OK ? safetensors_read(path, FILE_BYTES_MAX, ret, &err) : status;
}

/* Each allocation in turn fails; the leak checker of the asan preset watches the clean-up. */
START_TEST(survives_failing_allocations)
{
    const char *path = support_path("memory.safetensors");
    struct safetensors s;
    size_t n = 0;

    for (;;) {
        enum status status;

        mem_fail_nth(++n);
        status = save_and_load(path, &s);
        mem_fail_nth(0);
        if (status == STATUS_OK)
            break;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
    }
    ck_assert_uint_ge(n, 1 + 1 + 2 + 5); /* order, path, two lists, names and metadata */
    safetensors_release(&s);
}
END_TEST

/* A full disk, simulated by a file size limit: the error names it and the old file stays whole. */
START_TEST(full_disk_keeps_the_old_file)
{
    struct rlimit limit;
    rlim_t before;
    const char *path = support_path("full.safetensors");
    float slab[9] = {9};
    float loaded[9];
    struct safetensors s;

    assert_ok(safetensors_save_slab(path, &small_table, small_slab, NULL, 0, &err));
    ck_assert(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    before = limit.rlim_cur;
    limit.rlim_cur = 64;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_fails(safetensors_save_slab(path, &small_table, slab, NULL, 0, &err), STATUS_NO_SPACE,
                 path);
    limit.rlim_cur = before; /* Check writes its messages to a file */
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_ok(safetensors_read(path, FILE_BYTES_MAX, &s, &err));
    assert_ok(safetensors_load_slab(&s, &small_table, loaded, &err));
    ck_assert_mem_eq(loaded, small_slab, sizeof(loaded));
    safetensors_release(&s);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "safetensors", 0, TEST(reads_pytorch_files), TEST(writes_these_bytes), TEST(round_trip),
        TEST(empty_files), TEST(unusual_files_are_valid),
        LOOP_TEST(malformed_files_fail, 0, sizeof(hostile_cases) / sizeof(hostile_cases[0])),
        TEST(wrong_header_lengths_fail), TEST(every_wrong_length_fails),
        TEST(values_that_are_not_finite_fail), TEST(lists_every_difference),
        TEST(float_dtypes_are_converted), TEST(counts_of_older_files),
        TEST(survives_failing_allocations), TEST(full_disk_keeps_the_old_file));
}
