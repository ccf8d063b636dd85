/*
 * Real text: a small GPT learns the bytes of Shakespeare on 2 ranks.  Skipped without the data set.
 *
 * Invariant in both synchronisation modes: on the last tenth of the text, which is not trained on,
 * the loss is half a nat below the entropy of single bytes in that tenth.  A model that uses only
 * the frequency of each byte, and not the preceding bytes, cannot get below that entropy.
 */
#include "common/base/file.h"
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Entropy of single bytes in the test part of the file, in nats per byte. */
static double count_entropy(const char *path)
{
    size_t counts[256] = {0};
    char *text = NULL;
    size_t size = 0, first;
    double entropy = 0;
    struct error err;

    assert_ok(file_read(path, 1 << 22, &text, &size, &err));
    first = size - size / 10;
    for (size_t i = first; i < size; i++)
        counts[(unsigned char)text[i]]++;
    for (size_t c = 0; c < 256; c++) {
        double frequency = (double)counts[c] / (double)(size - first);

        entropy -= counts[c] > 0 ? frequency * log(frequency) : 0;
    }
    free(text);
    return entropy;
}

START_TEST(test_learns_byte_context)
{
    static const char *const sync_modes[] = {"allreduce", "ps"};
    const char *folder = support_data("text");
    char path[4096], data[4200];
    struct job job = {.ranks = 2, .servers = (unsigned)_i};
    json_t *summary;
    double loss, entropy;

    if (!folder)
        return;
    (void)snprintf(path, sizeof(path), "%s/tinyshakespeare/input.txt", folder);
    if (access(path, R_OK) != 0) {
        (void)printf("skipped: text needs '%s', which is not there\n", path);
        return;
    }
    (void)snprintf(data, sizeof(data), "text:%s", path);
    entropy = count_entropy(path);
    job.worker =
        ARGS("--model", "gpt:2,4,64,64", "--data", data, "--steps", "200", "--batch-size", "8",
             "--optimizer", "adamw", "--lr", "0.003", "--sync", sync_modes[_i], "--threads", "1");
    summary = job_summary(job_run(&job, 0));
    loss = json_number_value(json_object_get(summary, "test_loss"));
    (void)printf("Shakespeare through %s: test loss %.3f, entropy of bytes %.3f\n", sync_modes[_i],
                 loss, entropy);
    ck_assert_double_gt(entropy, 3.2);
    ck_assert_double_gt(loss, 1.0);
    ck_assert_double_lt(loss, entropy - 0.5);
    json_decref(summary);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("text", 280, LOOP_TEST(test_learns_byte_context, 0, 2));
}
