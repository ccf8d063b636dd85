/*
 * Whole jobs with every kind of network.  A convolutional network, a residual one and a transformer
 * with a tied embedding end with the same bits in every synchronisation mode; without batch
 * normalisation they equal one process with the whole batch, up to rounding.  A transformer learns
 * a text, a convolutional network learns files in the format of CIFAR-10.  Data that does not fit
 * the model is refused in one line.
 */
#include "tests/integration/job.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define RANKS 3

static const struct network {
    const char *model, *data;
    const char *optimizer, *lr;
    bool batch_norm;
} networks[] = {
    {"cnn:2x9x9-conv6k3s2-pool-conv8-fc20-fc5", "random:144,2x9x9,5", "sgd", "0.05", false},
    {"cnn:2x8x8-conv6-bn-pool-conv8s2-bn-fc20-bn-fc5", "random:144,2x8x8,5", "sgd", "0.05", true},
    {"resnet18:3x8x8,10", "random:36,3x8x8,10", "sgd", "0.01", true},
    {"gpt:2,2,24,10,40", "random-tokens:144,10,40", "adamw", "0.002", false},
};

#define NETWORKS (int)(sizeof(networks) / sizeof(networks[0]))

static const char *run_network(const struct network *n, unsigned ranks, unsigned servers,
                               const char *sync, const char *batch, const char *const more[4],
                               const char *save)
{
    struct job job = {
        .ranks = ranks,
        .servers = servers,
        .worker =
            ARGS("--model", n->model, "--data", n->data, "--steps", "12", "--optimizer",
                 n->optimizer, "--lr", n->lr, "--weight-decay", "0.01", "--seed", "5", "--sync",
                 sync, "--batch-size", batch, "--bucket-cap-mb", "0.01", "--partition-bytes",
                 n->batch_norm ? "64K" : "4K", "--threads", "1", "--device", job_device(),
                 "--evaluate", "never", "--save", save, more[0], more[1], more[2], more[3]),
    };

    return job_run(&job, 0);
}

static void check_all_sync_modes(const struct network *n)
{
    static const char *const exact[4] = {"--reduce", "reproducible"};
    static const char *const overlapped[4] = {"--reduce", "reproducible", "--overlap-forward"};
    static const char *const worker[4] = {"--reduce", "reproducible", "--ps-update", "worker"};
    const char *ring = support_path("ring.safetensors");
    const char *other = support_path("other.safetensors");
    double distance;

    (void)run_network(n, RANKS, 0, "allreduce", "4", exact, ring);
    (void)run_network(n, RANKS, 2, "ps", "4", overlapped, other);
    ck_assert_msg(job_same_tensors(ring, other), "%s: servers, overlapped", n->model);
    (void)run_network(n, RANKS, 1, "ps", "4", worker, other);
    ck_assert_msg(job_same_tensors(ring, other), "%s: servers, update on the worker", n->model);
    if (n->batch_norm)
        return;
    (void)run_network(n, 1, 0, "local", "12", exact, other);
    distance = job_checkpoint_distance(ring, other);
    ck_assert_msg(distance < 1e-3, "%s: one process: %g", n->model, distance);
}

START_TEST(test_all_sync_modes_give_same_bits)
{
    check_all_sync_modes(&networks[_i]);
}
END_TEST

#define PROFILE                                                                                    \
    "{\"version\": 1, \"layers\": ["                                                               \
    "{\"name\": \"a\", \"forward_us\": 200, \"backward_us\": 400, \"bytes\": 20000}, "             \
    "{\"name\": \"b\", \"forward_us\": %u, \"backward_us\": 500, \"bytes\": 8040}]}"

/* A profile's gradients reach the same parameters as those of a network. */
START_TEST(test_profile_gives_same_bits)
{
    char text[512];
    char model[4200];
    int length = snprintf(text, sizeof(text), PROFILE, 300);

    if (strcmp(job_device(), "cpu") != 0)
        return; /* refused there */
    (void)snprintf(model, sizeof(model), "profile:%s",
                   support_write("profile.json", text, (size_t)length));
    check_all_sync_modes(&(struct network){model, "random:144,1,2", "sgd", "0.05", false});
}
END_TEST

/* Each rank reads its own file. */
START_TEST(test_profiles_of_ranks_are_compared)
{
    static const char *const names[] = {"profile0.json", "profile1.json"};
    char script[4400];
    struct job job = {.ranks = 2};

    for (unsigned rank = 0; rank < 2; rank++) {
        char text[512];
        int length = snprintf(text, sizeof(text), PROFILE, 300 + rank);

        (void)support_write(names[rank], text, (size_t)length);
    }
    (void)snprintf(script, sizeof(script),
                   "mkdir %s/$RANK && cd %s/$RANK && cp ../profile$RANK.json p.json && exec \"$@\"",
                   support_folder(), support_folder());
    job.wrapper = ARGS("sh", "-c", script, "sh");
    job.worker = ARGS("--model", "profile:p.json", "--data", "random:64,1,2", "--steps", "2",
                      "--device", "cpu");
    (void)job_run(&job, PROCESS_FAILS); /* 3, or 1 where rank 0 has left before */
    ck_assert_msg(strstr(job_output(), "model times: rank 0 has") != NULL, "%s", job_output());
}
END_TEST

/* Each letter has two equally likely successors: the minimum loss is log 2. */
static const char *write_text(void)
{
    static char letters[20000];
    unsigned letter = 0;

    for (size_t i = 0; i < sizeof(letters); i++) {
        letters[i] = (char)('a' + letter);
        letter = (letter * 5 + (support_random() < 0.5 ? 3 : 4)) % 26;
    }
    return support_write("letters", letters, sizeof(letters));
}

START_TEST(test_transformer_learns_text)
{
    char data[4096];
    struct job job = {.ranks = 2, .servers = (unsigned)_i};
    json_t *summary;
    double loss;
    double accuracy;

    (void)snprintf(data, sizeof(data), "text:%s", write_text());
    job.worker = ARGS("--model", "gpt:2,2,32,16", "--data", data, "--steps", "300", "--batch-size",
                      "8", "--optimizer", "adamw", "--lr", "0.003", "--sync",
                      _i ? "ps" : "allreduce", "--threads", "1", "--device", job_device());
    summary = job_summary(job_run(&job, 0));
    loss = json_number_value(json_object_get(summary, "test_loss"));
    accuracy = json_number_value(json_object_get(summary, "test_accuracy"));
    (void)printf("text through %s: test loss %.4f, accuracy %.4f\n", _i ? "ps" : "allreduce", loss,
                 accuracy);
    ck_assert(loss > log(2) - 0.02 && loss < 1.0); /* initially log 256 = 5.5 */
    ck_assert(accuracy > 0.4 && accuracy < 0.6);
    json_decref(summary);
}
END_TEST

/* Files in the format of CIFAR-10: the class is the height of a green band; noise is added. */
static void write_images(void)
{
    enum { RECORDS = 40 };
    static unsigned char records[RECORDS * 3073];

    for (unsigned file = 0; file <= 5; file++) {
        char name[32];

        for (unsigned i = 0; i < RECORDS; i++) {
            unsigned char *record = records + (size_t)i * 3073;

            record[0] = (unsigned char)(i % 10);
            for (unsigned k = 0; k < 3072; k++) {
                bool band = k / 1024 == 1 && k % 1024 / 32 / 3 == record[0];

                record[1 + k] = (unsigned char)(support_random() * 100 + (band ? 150 : 50));
            }
        }
        (void)snprintf(name, sizeof(name), "data_batch_%u.bin", file);
        (void)support_write(file > 0 ? name : "test_batch.bin", records, sizeof(records));
    }
}

START_TEST(test_network_learns_cifar10)
{
    char data[4096];
    struct job job = {.ranks = 2};
    json_t *summary;
    double accuracy;

    write_images();
    (void)snprintf(data, sizeof(data), "cifar10:%s", support_folder());
    job.worker = ARGS("--model", "cnn:3x32x32-conv8k4s4p0-bn-fc20-fc10", "--data", data, "--epochs",
                      "10", "--batch-size", "10", "--lr", "0.02", "--momentum", "0.9", "--threads",
                      "1", "--device", job_device());
    summary = job_summary(job_run(&job, 0));
    accuracy = json_number_value(json_object_get(summary, "test_accuracy"));
    (void)printf("CIFAR-10's files: test accuracy %.4f\n", accuracy);
    ck_assert_double_ge(accuracy, 0.9);
    json_decref(summary);
}
END_TEST

START_TEST(test_unfit_data_is_refused)
{
    static const unsigned char ids[80] = {[30] = 0x2c, [31] = 1}; /* 300 at index 15 */
    const char *path = support_write("ids", ids, sizeof(ids));
    char text[4200];
    char tokens[4200];
    const struct {
        const char *model, *data, *part;
    } cases[] = {
        {"mlp:16-4", text, "needs a model that reads sequences"},
        {"gpt:1,1,8,64", text, "too few for one sample of 64"},
        {"gpt:1,1,8,8", tokens, "ids': token 15 is 300; the vocabulary has 300"},
        {"gpt:1,1,8,1,100", text, "distinguishes 100 classes"},
        {"gpt:1,1,8,8", "random-tokens:9,7,256", "takes 8 features"},
        {"gpt:1,1,8,8", "random:9,8,256", "predicts 8 labels per sample"},
        {"mlp:8-256", "random-tokens:9,8,256", "predicts 1 labels per sample"},
        {"lenet", "random:9,3x32x32,10", "takes 784 features"},
    };

    (void)snprintf(text, sizeof(text), "text:%s", path);
    (void)snprintf(tokens, sizeof(tokens), "tokens:%s,300", path);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *output = process_run(PROCESS_FAILS, 20000, NULL,
                                         ARGS(support_program("sparring-worker"), "--model",
                                              cases[i].model, "--data", cases[i].data, "--steps",
                                              "1", "--sync", "local", "--device", "cpu"));

        ck_assert_msg(strstr(output, cases[i].part) != NULL, "%s lacks '%s'", output,
                      cases[i].part);
    }
}
END_TEST

int main(void)
{
    return SUPPORT_RUN(
        "models_job", 120, LOOP_TEST(test_all_sync_modes_give_same_bits, 0, NETWORKS),
        TEST(test_profile_gives_same_bits), TEST(test_profiles_of_ranks_are_compared),
        LOOP_TEST(test_transformer_learns_text, 0, 2), TEST(test_network_learns_cifar10),
        TEST(test_unfit_data_is_refused));
}
