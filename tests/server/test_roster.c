/*
 * The roster reads what it has written, and nothing else.
 */
#include "server/roster.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

#define WORLD 3u

static struct error err;
static const struct roster_rank ranks[WORLD] = {{true, 1}, {false, UINT64_MAX}, {true, 0}};

START_TEST(test_there_and_back)
{
    struct roster_rank got[WORLD];
    struct strbuf text = STRBUF_INIT;
    uint64_t epoch;

    roster_write(&text, UINT64_MAX, ranks, WORLD);
    assert_ok(roster_parse(text.text, WORLD, &epoch, got, &err));
    ck_assert(epoch == UINT64_MAX);
    for (unsigned i = 0; i < WORLD; i++)
        ck_assert(got[i].in == ranks[i].in && got[i].session == ranks[i].session);
    strbuf_release(&text);
}
END_TEST

START_TEST(test_anything_else)
{
    static const char *const texts[] = {
        "",
        "epoch 1\n",
        "epoch 1",
        "epoch x\nrank 0 in 0000000000000001\n",
        "epoch 0\nrank 0 in 0000000000000001\n",
        "epoch 01\nrank 0 in 0000000000000001\n",
        "epoch 1\nrank 0 on 0000000000000001\n",
        "epoch 1\nrank 1 in 0000000000000001\n",
        "epoch 1\nrank 0 in 1\n",
        "epoch 1\nrank 0 in 0000000000000001",
        "epoch 1\nrank 0 in 0000000000000001\n\n",
        "epoch 1\nrank 0 in 0000000000000001\nrank 1 in 0000000000000001\n",
        "epoch 1\nrank 0 inn 0000000000000001\n",
        "epoch 1\nrank 0 in 10000000000000001\n"};
    struct roster_rank got[1];
    uint64_t epoch = 77;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        assert_fails(roster_parse(texts[i], 1, &epoch, got, &err), STATUS_DATA, "cannot be read");
    ck_assert_uint_eq(epoch, 77);
    assert_ok(roster_parse("epoch 1\nrank 0 in 0000000000000001\n", 1, &epoch, got, &err));
}
END_TEST

/* Any byte changed: refused, or read as what it says now. */
START_TEST(test_changed_bytes)
{
    struct strbuf text = STRBUF_INIT, again = STRBUF_INIT;
    struct roster_rank got[WORLD];
    uint64_t epoch;

    roster_write(&text, 12, ranks, WORLD);
    for (size_t at = 0; at < text.length; at++)
        for (int byte = 1; byte < 256; byte++) {
            char old = text.text[at];

            text.text[at] = (char)byte;
            if (roster_parse(text.text, WORLD, &epoch, got, &err) == STATUS_OK) {
                strbuf_reset(&again);
                roster_write(&again, epoch, got, WORLD);
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
    Suite *suite = suite_create("roster");
    TCase *tcase = tcase_create("roster");

    tcase_add_test(tcase, test_there_and_back);
    tcase_add_test(tcase, test_anything_else);
    tcase_add_test(tcase, test_changed_bytes);
    suite_add_tcase(suite, tcase);
    return support_run(suite);
}
