/*
 * The steps of a valid job of two ranks in lockstep, whose mean gradients come back.  Each element
 * of a push encodes partition, round and rank, so a reply identifies its round.  Failures end the
 * test.
 */
#include "tests/server/service/raw_job.h"

#include "common/base/log.h"
#include "tests/support/support.h"

#include <stdlib.h>
#include <string.h>

struct service *service;
struct raw_worker workers[3];

static struct error err;

void open_service(int64_t timeout_ms, const char *run_dir)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = timeout_ms,
                                    .run_dir = run_dir};

    log_set_level(LOG_QUIET); /* it logs why jobs end */
    assert_ok(service_open(&config, &service, &err));
    for (unsigned i = 0; i < 3; i++)
        raw_open(&workers[i], service_port(service), i);
}

void close_workers(void)
{
    for (unsigned i = 0; i < 3; i++)
        raw_close(&workers[i]);
}

void close_service(void)
{
    close_workers();
    service_close(service);
}

void check_result(const char *who, struct rpc_result r, enum status expected, const char *part)
{
    ck_assert_msg(r.status == expected, "%s: got %s, wanted %s (%s)", who, status_name(r.status),
                  status_name(expected), r.text);
    ck_assert_msg(strstr(r.text, part) != NULL, "%s: '%s' lacks '%s'", who, r.text, part);
}

void check_seconds(const char *text, const char *part, double least)
{
    const char *seconds_at = strstr(text, part);
    double seconds = 0;
    char *end = NULL;

    ck_assert_msg(seconds_at != NULL, "'%s' lacks '%s'", text, part);
    seconds = strtod(seconds_at + strlen(part), &end);
    ck_assert_msg(end > seconds_at + strlen(part) && strncmp(end, " s", 2) == 0, "no seconds: '%s'",
                  text);
    ck_assert_msg(seconds >= least && seconds < RAW_LONGEST, "%g s, due are %g: '%s'", seconds,
                  least, text);
}

void join_both(void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct join_request terms = raw_terms(i);

        raw_begin_join(&workers[i], &terms);
    }
    for (unsigned i = 0; i < 2; i++)
        check_result("join", raw_end_join(&workers[i]), STATUS_OK, "");
}

void start_job(void)
{
    join_both();
    raw_initialise(workers, 2, 0.5f);
}

void play_round(uint64_t round)
{
    for (uint32_t p = 0; p < RAW_PARTITIONS; p++)
        for (unsigned i = 2; i-- > 0;)
            raw_send_valid(&workers[i], CHUNK_PUSH, p, round, (float)(p + round * 10 + i));
    for (unsigned i = 0; i < 2; i++)
        for (uint32_t p = 0; p < RAW_PARTITIONS; p++) {
            float first;
            struct chunk_header h = raw_take(&workers[i], &first);

            ck_assert_int_eq(h.kind, CHUNK_MEAN);
            ck_assert_uint_eq(h.rank, i);
            ck_assert_uint_eq(h.round, round);
            ck_assert_uint_lt(h.partition, RAW_PARTITIONS);
            ck_assert(first == (float)(2 * (h.partition + round * 10) + 1));
        }
}

void end_job(void)
{
    for (unsigned i = 0; i < 2; i++)
        check_result("leave", raw_leave(&workers[i], "raw", ""), STATUS_OK, "");
    for (unsigned i = 0; i < 2; i++) {
        rpc_call_send_done(workers[i].stream.call);
        check_result("stream", raw_wait_closed(&workers[i].stream), STATUS_OK, "");
    }
}

void check_still_serves(void)
{
    start_job();
    play_round(1);
    play_round(2);
    end_job();
}
