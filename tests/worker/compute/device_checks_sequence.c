/*
 * What begins and ends a transformer: the embedding against double, and a loss whose gradient takes
 * the place of the logits against one that does not.
 */
#include "tests/support/support.h"
#include "tests/worker/compute/device_arrays.h"
#include "tests/worker/compute/device_checks.h"

#include <stdlib.h>

static struct error err;

struct embedding_case {
    struct embedding embedding;
    size_t batch;
    struct array ids, tokens, places;
};

static struct embedding_case embedding_make(struct compute *c, size_t batch, size_t vocabulary,
                                            size_t positions, size_t width)
{
    struct embedding_case e = {
        .embedding = {.vocabulary = vocabulary, .positions = positions, .width = width},
        .batch = batch,
        .ids = array_make(c, batch * positions),
        .tokens = array_random(c, vocabulary * width),
        .places = array_random(c, positions * width),
    };

    for (size_t i = 0; i < batch * positions; i++)
        e.ids.host[i] = (float)(random_size(vocabulary) - 1);
    array_send(c, &e.ids);
    e.embedding.tokens = e.tokens.device;
    e.embedding.places = e.places.device;
    return e;
}

static void embedding_free(struct compute *c, struct embedding_case *e)
{
    array_free(c, &e->ids);
    array_free(c, &e->tokens);
    array_free(c, &e->places);
}

static void check_embedding_forward(struct compute *c, size_t batch, size_t vocabulary,
                                    size_t positions, size_t width)
{
    struct embedding_case e = embedding_make(c, batch, vocabulary, positions, width);
    struct array y = values_poisoned(c, batch * positions * width);

    assert_ok(compute_embedding_forward(c, &e.embedding, e.ids.device, y.device, batch, &err));
    array_receive(c, &y);
    for (size_t i = 0; i < y.count; i++) {
        size_t place = i / width;
        struct exact wanted = {0};

        exact_add(&wanted, (double)e.tokens.host[(size_t)e.ids.host[place] * width + i % width]);
        exact_add(&wanted, (double)e.places.host[place % positions * width + i % width]);
        exact_expect_sum("embedding forward", i, y.host[i], &wanted);
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
    struct array dplaces =
        add ? array_random(c, positions * width) : array_poisoned(c, positions * width);
    struct exact *tokens = calloc(dtokens.count, sizeof(*tokens));
    struct exact *places = calloc(dplaces.count, sizeof(*places));

    ck_assert(tokens && places);
    e.embedding.dtokens = dtokens.device;
    e.embedding.dplaces = dplaces.device;
    for (size_t i = 0; add_tokens && i < dtokens.count; i++)
        exact_add(&tokens[i], (double)dtokens.host[i]);
    for (size_t i = 0; add && i < dplaces.count; i++)
        exact_add(&places[i], (double)dplaces.host[i]);
    for (size_t i = 0; i < dy.count; i++) {
        size_t place = i / width;

        exact_add(&tokens[(size_t)e.ids.host[place] * width + i % width], (double)dy.host[i]);
        exact_add(&places[place % positions * width + i % width], (double)dy.host[i]);
    }
    assert_ok(compute_embedding_backward(c, &e.embedding, e.ids.device, dy.device, batch,
                                         add_tokens, add, &err));
    array_receive(c, &dtokens);
    array_receive(c, &dplaces);
    for (size_t i = 0; i < dtokens.count; i++)
        exact_expect_sum("token gradient", i, dtokens.host[i], &tokens[i]);
    for (size_t i = 0; i < dplaces.count; i++)
        exact_expect_sum("position gradient", i, dplaces.host[i], &places[i]);
    free(tokens);
    free(places);
    array_free(c, &dy);
    array_free(c, &dtokens);
    array_free(c, &dplaces);
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

/* ---- cross-entropy in place ---- */

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
    array_receive(c, &logits);
    array_receive(c, &gradient);
    ck_assert(loss[0] == loss[1] && correct[0] == correct[1]);
    for (size_t i = 0; i < rows * classes; i++)
        if (logits.host[i] != gradient.host[i])
            ck_abort_msg("cross-entropy in place: element %zu of %zu", i, rows * classes);
    free(labels);
    array_free(c, &logits);
    array_free(c, &gradient);
}

void check_sequence(struct compute *c, int rounds)
{
    check_embedding_shape(c, 1, 1, 1, 1);
    check_embedding_shape(c, 9, 3, 17, 33); /* every token many times */
    check_embedding_shape(c, 9, 3, 17, 328);
    for (int round = 0; round < rounds; round++)
        check_embedding_shape(c, random_size(5), random_size(40), random_size(20), random_size(70));
    check_softmax_in_place(c, 5, 1030);
    check_softmax_in_place(c, 1, 1);
}
