/*
 * Senders of the same messages, in a random order of events: none waits for ever, and none is
 * further ahead than it may be.
 */
#include "common/base/send_limit.h"
#include "tests/support/support.h"

#define SENDERS  4
#define MESSAGES 40 /* numbered as their priorities, from 1 */

struct sender {
    struct send_limit limit;
    unsigned ready; /* messages 1 to `ready` may leave */
    bool has_left[MESSAGES + 1], is_replied[MESSAGES + 1];
    unsigned replied;
};

static struct sender senders[SENDERS];

/* The most urgent message that is ready and has not left; 0: none. */
static unsigned most_urgent(const struct sender *s)
{
    for (unsigned i = s->ready; i > 0; i--)
        if (!s->has_left[i])
            return i;
    return 0;
}

static bool send_one(struct sender *s)
{
    const unsigned i = most_urgent(s);

    if (i == 0 || !send_limit_allows(&s->limit, i))
        return false;
    send_limit_sent(&s->limit, i);
    s->has_left[i] = true;
    return true;
}

static bool has_come(unsigned message)
{
    for (unsigned i = 0; i < SENDERS; i++)
        if (!senders[i].has_left[message])
            return false;
    return true;
}

/* The reply to any message that all have sent. */
static bool reply_one(struct sender *s)
{
    const unsigned first = (unsigned)(support_random() * MESSAGES);

    for (unsigned k = 0; k < MESSAGES; k++) {
        const unsigned i = 1 + (first + k) % MESSAGES;

        if (s->is_replied[i] || !has_come(i))
            continue;
        send_limit_replied(&s->limit, i);
        s->is_replied[i] = true;
        s->replied++;
        return true;
    }
    return false;
}

static bool get_ready(struct sender *s)
{
    if (s->ready == MESSAGES)
        return false;
    s->ready++;
    return true;
}

static bool run_event(void)
{
    struct sender *s = &senders[(size_t)(support_random() * SENDERS)];
    const double kind = support_random();

    return kind < 0.2 ? get_ready(s) : kind < 0.7 ? send_one(s) : reply_one(s);
}

/* Two rounds, of senders that get ready at times of their own. */
START_TEST(test_none_waits_for_ever)
{
    for (int draw = 0; draw < SUPPORT_DRAWS(2000, 200); draw++) {
        const unsigned most = 1 + (unsigned)(support_random() * 6);

        for (unsigned i = 0; i < SENDERS; i++)
            senders[i] = (struct sender){.limit.most = most};
        for (int round = 0; round < 2; round++) {
            unsigned idle = 0;

            for (unsigned i = 0; i < SENDERS; i++)
                senders[i] = (struct sender){.limit = senders[i].limit};
            while (idle < 2000)
                idle = run_event() ? 0 : idle + 1;
            for (unsigned i = 0; i < SENDERS; i++)
                ck_assert_msg(senders[i].replied == MESSAGES, "%u replies of %d with %u ahead",
                              senders[i].replied, MESSAGES, most);
        }
    }
}
END_TEST

/* Of messages that are all ready: as many as there are before the first reply, for the others may
 * not have begun, and then as many as have replies. */
START_TEST(test_as_far_as_allowed)
{
    struct send_limit limit = {.most = 3};
    unsigned next = MESSAGES;

    for (; next > MESSAGES - 5; next--) {
        ck_assert(send_limit_allows(&limit, next));
        send_limit_sent(&limit, next);
    }
    send_limit_replied(&limit, MESSAGES);
    ck_assert(!send_limit_allows(&limit, next));        /* four have no reply */
    ck_assert(send_limit_allows(&limit, next + 1));     /* a further part of the last one */
    ck_assert(send_limit_allows(&limit, MESSAGES + 1)); /* a series of its own */
    send_limit_replied(&limit, MESSAGES - 1);
    ck_assert(!send_limit_allows(&limit, next));
    send_limit_replied(&limit, MESSAGES - 3);
    ck_assert(send_limit_allows(&limit, next));
    send_limit_sent(&limit, next);
    ck_assert(!send_limit_allows(&limit, next - 1));
    send_limit_sent(&limit, MESSAGES + 1);
    ck_assert(send_limit_allows(&limit, 1));
}
END_TEST

/* 1 Gbit/s and 40 ms are 5 MB on the way and 10 MB queued: 3.75 MB for each of four senders, and a
 * few messages. */
START_TEST(test_messages)
{
    ck_assert_uint_eq(send_limit_messages(125e6, 0.04, 4, 65536), 58 + 4);
    ck_assert_uint_eq(send_limit_messages(125e6, 0, 4, 65536), 4);
    ck_assert_uint_eq(send_limit_messages(0, 0.04, 4, 65536), 0);
    ck_assert(send_limit_allows(&(struct send_limit){0}, 1));
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("send_limit", 30, TEST(test_none_waits_for_ever),
                       TEST(test_as_far_as_allowed), TEST(test_messages));
}
