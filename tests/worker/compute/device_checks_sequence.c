/*
 * Input and output of a transformer: the embedding against double, and a loss whose gradient
 * replaces the logits against one with a separate gradient.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <stdlib.h>

static struct error err;

struct embedding_case {
    struct embedding embedding;
    size_t batch;
    struct array ids, tokens, positions;
};

static struct embedding_case embedding_make(struct compute *c, size_t batch, size_t vocabulary,
                                            size_t positions, size_t width)
{
    struct embedding_case e = {
        .embedding = {.vocabulary = vocabulary, .positions = positions, .width = width},
        .batch = batch,
        .ids = array_make(c, batch * positions),
        .tokens = array_random(c, vocabulary * width),
        .positions = array_random(c, positions * width),
    };

    for (size_t i = 0; i < batch * positions; i++)
        e.ids.host[i] = (float)(random_size(vocabulary) - 1);
    array_upload(c, &e.ids);
    e.embedding.token_weight = e.tokens.device;
    e.embedding.position_weight = e.positions.device;
    return e;
}

static void embedding_free(struct compute *c, struct embedding_case *e)
{
    array_free(c, &e->ids);
    array_free(c, &e->tokens);
    array_free(c, &e->positions);
}

static void check_embedding_forward(struct compute *c, size_t batch, size_t vocabulary,
                                    size_t positions, size_t width)
{
    struct embedding_case e = embedding_make(c, batch, vocabulary, positions, width);
    struct array y = values_poisoned(c, batch * positions * width);

    assert_ok(compute_embedding_forward(c, &e.embedding, e.ids.device, y.device, batch, &err));
    array_download(c, &y);
    for (size_t i = 0; i < y.count; i++) {
        size_t row = i / width;
        struct exact expected = {0};

        exact_add(&expected, (double)e.tokens.host[(size_t)e.ids.host[row] * width + i % width]);
        exact_add(&expected, (double)e.positions.host[row % positions * width + i % width]);
        exact_expect_sum("embedding forward", i, y.host[i], &expected);
    }
    array_free(c, &y);
    embedding_free(c, &e);
}

static void check_embedding_backward(struct compute *c, size_t batch, size_t vocabulary,
                                     size_t positions, size_t width, bool add_tokens, bool add)
{
    struct embedding_case e = embedding_make(c, batch, vocabulary, positions, width);
    struct array dy = values_random(c, batch * positions * width);
    struct array dtokens =
        add_tokens ? array_random(c, vocabulary * width) : array_poisoned(c, vocabulary * width);
    struct array dpositions =
        add ? array_random(c, positions * width) : array_poisoned(c, positions * width);
    struct exact *tokens = calloc(dtokens.count, sizeof(*tokens));
    struct exact *position_sums = calloc(dpositions.count, sizeof(*position_sums));

    ck_assert(tokens && position_sums);
    e.embedding.dtoken_weight = dtokens.device;
    e.embedding.dposition_weight = dpositions.device;
    for (size_t i = 0; add_tokens && i < dtokens.count; i++)
        exact_add(&tokens[i], (double)dtokens.host[i]);
    for (size_t i = 0; add && i < dpositions.count; i++)
        exact_add(&position_sums[i], (double)dpositions.host[i]);
    for (size_t i = 0; i < dy.count; i++) {
        size_t row = i / width;

        exact_add(&tokens[(size_t)e.ids.host[row] * width + i % width], (double)dy.host[i]);
        exact_add(&position_sums[row % positions * width + i % width], (double)dy.host[i]);
    }
    assert_ok(compute_embedding_backward(c, &e.embedding, e.ids.device, dy.device, batch,
                                         add_tokens, add, &err));
    array_download(c, &dtokens);
    array_download(c, &dpositions);
    for (size_t i = 0; i < dtokens.count; i++)
        exact_expect_sum("token gradient", i, dtokens.host[i], &tokens[i]);
    for (size_t i = 0; i < dpositions.count; i++)
        exact_expect_sum("position gradient", i, dpositions.host[i], &position_sums[i]);
    free(tokens);
    free(position_sums);
    array_free(c, &dy);
    array_free(c, &dtokens);
    array_free(c, &dpositions);
    embedding_free(c, &e);
}

static void check_embedding_shape(struct compute *c, size_t batch, size_t vocabulary,
                                  size_t positions, size_t width)
{
    check_embedding_forward(c, batch, vocabulary, positions, width);
    for (int variant = 0; variant < 4; variant++)
        check_embedding_backward(c, batch, vocabulary, positions, width, variant % 2 == 0,
                                 variant / 2 == 0);
}

/* ---- cross-entropy in row ---- */

static void check_softmax_in_place(struct compute *c, size_t rows, size_t classes)
{
    struct array logits = values_random(c, rows * classes);
    struct array gradient = values_poisoned(c, rows * classes);
    int32_t *labels = malloc(rows * sizeof(*labels));
    double loss[2];
    size_t correct[2];

    ck_assert_ptr_nonnull(labels);
    for (size_t i = 0; i < rows; i++)
        labels[i] = (int32_t)random_size(classes) - 1;
    assert_ok(compute_softmax_cross_entropy(c, logits.device, labels, gradient.device, rows,
                                            classes, classes, &err));
    assert_ok(compute_loss_wait(c, &loss[0], &correct[0], &err));
    assert_ok(compute_softmax_cross_entropy(c, logits.device, labels, logits.device, rows, classes,
                                            classes, &err));
    assert_ok(compute_loss_wait(c, &loss[1], &correct[1], &err));
    array_download(c, &logits);
    array_download(c, &gradient);
    ck_assert(loss[0] == loss[1] && correct[0] == correct[1]);
    for (size_t i = 0; i < rows * classes; i++)
        if (logits.host[i] != gradient.host[i])
            ck_abort_msg("cross-entropy in row: element %zu of %zu", i, rows * classes);
    free(labels);
    array_free(c, &logits);
    array_free(c, &gradient);
}

void check_sequence(struct compute *c, int rounds)
{
    check_embedding_shape(c, 1, 1, 1, 1);
    check_embedding_shape(c, 9, 3, 17, 33); /* many rows per token */
    check_embedding_shape(c, 9, 3, 17, 328);
    for (int round = 0; round < rounds; round++)
        check_embedding_shape(c, random_size(5), random_size(40), random_size(20), random_size(70));
    check_softmax_in_place(c, 5, 1030);
    check_softmax_in_place(c, 1, 1);
}
