/*
 * The parser of the membership file accepts what the writer produces, and nothing else.
 */
#include "server/persistence/membership_file.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#define WORLD 3u

static struct error err;
static const struct membership_file_rank ranks[WORLD] = {{true, 1}, {false, UINT64_MAX}, {true, 0}};

START_TEST(test_round_trip)
{
    struct membership_file_rank got[WORLD];
    struct strbuf text = STRBUF_INIT;
    struct membership_file read,
        file = {
            .epoch = UINT64_MAX, .role = (enum job_role)_i, .ranks = ranks, .world_size = WORLD};

    membership_file_write(&text, &file);
    assert_ok(membership_file_parse(text.text, WORLD, &read, got, &err));
    ck_assert(read.epoch == UINT64_MAX && read.role == file.role);
    ck_assert(read.ranks == got && read.world_size == WORLD);
    for (unsigned i = 0; i < WORLD; i++)
        ck_assert(got[i].is_joined == ranks[i].is_joined && got[i].session == ranks[i].session);
    strbuf_release(&text);
}
END_TEST

START_TEST(test_malformed_texts)
{
    static const char *const texts[] = {
        "",
        "epoch 1\n",
        "epoch 1",
        "epoch 1\nrole alone\n",
        "epoch 1\nrank 0 in 0000000000000001\n",
        "epoch 1\nrole alon\nrank 0 in 0000000000000001\n",
        "epoch 1\nrole pair \nrank 0 in 0000000000000001\n",
        "epoch x\nrole alone\nrank 0 in 0000000000000001\n",
        "epoch 0\nrole alone\nrank 0 in 0000000000000001\n",
        "epoch 01\nrole alone\nrank 0 in 0000000000000001\n",
        "epoch 1\nrole alone\nrank 0 on 0000000000000001\n",
        "epoch 1\nrole alone\nrank 1 in 0000000000000001\n",
        "epoch 1\nrole alone\nrank 0 in 1\n",
        "epoch 1\nrole alone\nrank 0 in 0000000000000001",
        "epoch 1\nrole alone\nrank 0 in 0000000000000001\n\n",
        "epoch 1\nrole alone\nrank 0 in 0000000000000001\nrank 1 in 0000000000000001\n",
        "epoch 1\nrole alone\nrank 0 inn 0000000000000001\n",
        "epoch 1\nrole alone\nrank 0 in 10000000000000001\n"};
    struct membership_file_rank got[1];
    struct membership_file read = {.epoch = 77};

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_fails(membership_file_parse(texts[i], 1, &read, got, &err), STATUS_DATA,
                     "cannot be read");
    ck_assert_uint_eq(read.epoch, 77);
    assert_ok(membership_file_parse("epoch 1\nrole alone\nrank 0 in 0000000000000001\n", 1, &read,
                                    got, &err));
}
END_TEST

/* A text with any byte changed is refused, or parsed as the changed membership. */
START_TEST(test_changed_bytes)
{
    struct strbuf text = STRBUF_INIT, again = STRBUF_INIT;
    struct membership_file_rank got[WORLD];
    struct membership_file read,
        file = {.epoch = 12, .role = JOB_PAIR, .ranks = ranks, .world_size = WORLD};

    membership_file_write(&text, &file);
    for (size_t at = 0; at < text.length; at++)
        for (int byte = 1; byte < 256; byte++) {
            char old = text.text[at];

            text.text[at] = (char)byte;
            if (membership_file_parse(text.text, WORLD, &read, got, &err) == STATUS_OK) {
                strbuf_reset(&again);
                membership_file_write(&again, &read);
                ck_assert_str_eq(again.text, text.text);
            }
            text.text[at] = old;
        }
    strbuf_release(&text);
    strbuf_release(&again);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("membership_file", 0, LOOP_TEST(test_round_trip, 0, JOB_PROMOTED + 1),
                       TEST(test_malformed_texts), TEST(test_changed_bytes));
}
