/*
 * Records read back with jansson: exact texts, random values, non-finite numbers, hostile text,
 * a full disk, and lines of two writers that must not mix.
 */
#include "common/metrics/metrics.h"

#include "common/base/file.h"
#include "tests/support/support.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct error err;

static char *contents(const char *path)
{
    char *text = NULL;
    size_t size;

    assert_ok(file_read(path, (size_t)1 << 24, &text, &size, &err));
    return text;
}

static const struct step_record example = {.step = 7,
                                           .epoch = 1,
                                           .loss = (double)2.3025851f,
                                           .samples = 32,
                                           .step_ns = 1000000,
                                           .input_ns = 1,
                                           .compute_ns = 900000,
                                           .exposed_comm_ns = 90000,
                                           .optimizer_ns = 9999,
                                           .forward_ns = 300,
                                           .comm_ns = 170000,
                                           .tx_payload_bytes = INT64_MAX,
                                           .rx_payload_bytes = 4};

START_TEST(exact_lines)
{
    const char *path = support_path("rank0.jsonl");
    struct metrics m;
    char *text;

    assert_ok(metrics_open(&m, path, &err));
    assert_ok(metrics_step(&m, &example, &err));
    metrics_begin(&m, "end");
    metrics_add_text(&m, "status", "o\"k\n");
    metrics_add_int(&m, "steps", -1);
    metrics_add_double(&m, "cpu_seconds", 0.1);
    assert_ok(metrics_end(&m, &err));
    metrics_close(&m);
    text = contents(path);
    ck_assert_str_eq(text,
                     "{\"kind\":\"step\",\"step\":7,\"epoch\":1,\"loss\":2.30258512,\"samples\":32,"
                     "\"step_ns\":1000000,\"input_ns\":1,\"compute_ns\":900000,"
                     "\"exposed_comm_ns\":90000,\"optimizer_ns\":9999,\"forward_ns\":300,"
                     "\"comm_ns\":170000,"
                     "\"tx_payload_bytes\":9223372036854775807,\"rx_payload_bytes\":4}\n"
                     "{\"kind\":\"end\",\"status\":\"o\\\"k\\u000a\",\"steps\":-1,"
                     "\"cpu_seconds\":0.1}\n");
    free(text);
}
END_TEST

START_TEST(appends)
{
    const char *path = support_write("rank1.jsonl", "{}\n", 3);
    struct metrics m;
    char *text;

    for (int i = 0; i < 2; i++) {
        assert_ok(metrics_open(&m, path, &err));
        metrics_begin(&m, "start");
        assert_ok(metrics_end(&m, &err));
        metrics_close(&m);
    }
    text = contents(path);
    ck_assert_str_eq(text, "{}\n{\"kind\":\"start\"}\n{\"kind\":\"start\"}\n");
    free(text);
}
END_TEST

START_TEST(not_finite)
{
    static const double values[] = {(double)NAN, HUGE_VAL, -HUGE_VAL};
    const char *path = support_path("null.jsonl");
    struct metrics m;
    char *text;

    assert_ok(metrics_open(&m, path, &err));
    for (size_t i = 0; i < 3; i++) {
        struct step_record record = example;

        record.loss = values[i];
        assert_ok(metrics_step(&m, &record, &err));
        metrics_begin(&m, "x");
        metrics_add_double(&m, "y", values[i]);
        assert_ok(metrics_end(&m, &err));
    }
    metrics_close(&m);
    text = contents(path);
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        json_t *object = json_loads(line, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, NULL);
        json_t *value;

        ck_assert_ptr_nonnull(object);
        value = json_object_get(object, "loss");
        ck_assert(json_is_null(value ? value : json_object_get(object, "y")));
        json_decref(object);
    }
    free(text);
}
END_TEST

START_TEST(random_values)
{
    const char *path = support_path("random.jsonl");
    struct metrics m;

    for (int round = 0; round < 300; round++) {
        float loss = (float)ldexp(support_random() - 0.5, (int)(support_random() * 200) - 100);
        double value = ldexp(support_random() - 0.5, (int)(support_random() * 2000) - 1000);
        struct step_record record = example;
        json_t *object;
        FILE *f;

        (void)unlink(path);
        record.loss = (double)loss;
        assert_ok(metrics_open(&m, path, &err));
        assert_ok(metrics_step(&m, &record, &err));
        metrics_begin(&m, "x");
        metrics_add_double(&m, "y", value);
        assert_ok(metrics_end(&m, &err));
        metrics_close(&m);
        f = fopen(path, "re");
        ck_assert_ptr_nonnull(f);
        object = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
        ck_assert((float)json_number_value(json_object_get(object, "loss")) == loss);
        json_decref(object);
        object = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL);
        ck_assert_double_eq(json_number_value(json_object_get(object, "y")), value);
        json_decref(object);
        (void)fclose(f);
    }
}
END_TEST

START_TEST(dropped)
{
    struct metrics m;
    struct metrics never = {0};

    assert_ok(metrics_open(&m, NULL, &err));
    assert_ok(metrics_step(&m, &example, &err));
    metrics_begin(&m, "x");
    metrics_add_text(&m, "a", "b");
    metrics_add_double(&m, "c", 1);
    assert_ok(metrics_end(&m, &err));
    metrics_close(&m);
    metrics_close(&m);
    metrics_close(&never);
    ck_assert_int_ne(fcntl(0, F_GETFD), -1); /* a zeroed struct did not close descriptor 0 */
}
END_TEST

START_TEST(full_disk)
{
    struct metrics m;

    assert_ok(metrics_open(&m, "/dev/full", &err));
    assert_fails(metrics_step(&m, &example, &err), STATUS_NO_SPACE, "cannot write '/dev/full'");
    metrics_begin(&m, "x");
    assert_fails(metrics_end(&m, &err), STATUS_NO_SPACE, "'/dev/full'");
    metrics_close(&m);
}
END_TEST

START_TEST(cannot_open)
{
    struct metrics m;
    char path[5000];

    assert_fails(metrics_open(&m, "/nonexistent/rank0.jsonl", &err), STATUS_NOT_FOUND,
                 "cannot open '/nonexistent/rank0.jsonl'");
    metrics_close(&m);
    memset(path, 'a', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    assert_fails(metrics_open(&m, path, &err), STATUS_CONFIG, "4999 bytes is too long");
    metrics_close(&m);
}
END_TEST

static void *write_many(void *argument)
{
    struct metrics *m = argument;
    struct error own = {0};

    for (int i = 0; i < 2000; i++)
        if (metrics_step(m, &example, &own) != STATUS_OK)
            return m;
    return NULL;
}

/* Two writers of one file (two structs, as two processes have): every line stays whole. */
START_TEST(two_writers)
{
    const char *path = support_path("shared.jsonl");
    struct metrics writers[2];
    pthread_t threads[2];
    size_t lines = 0;
    char *text;

    for (int i = 0; i < 2; i++) {
        assert_ok(metrics_open(&writers[i], path, &err));
        ck_assert_int_eq(pthread_create(&threads[i], NULL, write_many, &writers[i]), 0);
    }
    for (int i = 0; i < 2; i++) {
        void *failed;

        ck_assert_int_eq(pthread_join(threads[i], &failed), 0);
        ck_assert_ptr_null(failed);
        metrics_close(&writers[i]);
    }
    text = contents(path);
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        ck_assert(strncmp(line, "{\"kind\":\"step\"", 14) == 0);
        lines++;
    }
    ck_assert_uint_eq(lines, 4000);
    free(text);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("metrics", 0, TEST(exact_lines), TEST(appends), TEST(not_finite),
                       TEST(random_values), TEST(dropped), TEST(full_disk), TEST(cannot_open),
                       TEST(two_writers));
}
