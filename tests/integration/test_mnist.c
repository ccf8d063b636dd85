/*
 * Real data: MNIST, mlp:784-128-10, 3 epochs on 2 ranks.  All-reduce and parameter server must both
 * reach a test accuracy of 97 %.  Skipped without the data set.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>

START_TEST(test_accuracy)
{
    static const char *const sync_modes[] = {"allreduce", "ps"};
    const char *folder = support_data("mnist");
    char data[4096];
    struct job job = {.ranks = 2, .servers = (unsigned)_i};
    json_t *summary;
    double accuracy;

    if (!folder)
        return;
    (void)snprintf(data, sizeof(data), "mnist:%s/mnist", folder);
    job.worker =
        ARGS("--model", "mlp:784-128-10", "--data", data, "--epochs", "3", "--batch-size", "32",
             "--lr", "0.05", "--momentum", "0.9", "--sync", sync_modes[_i], "--threads", "1");
    summary = job_summary(job_run(&job, 0));
    accuracy = json_number_value(json_object_get(summary, "test_accuracy"));
    (void)printf("MNIST through %s: test accuracy %.4f\n", sync_modes[_i], accuracy);
    ck_assert_double_ge(accuracy, 0.97);
    json_decref(summary);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("mnist", 280, LOOP_TEST(test_accuracy, 0, 2));
}
