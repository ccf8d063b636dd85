/*
 * Ranks bound to certificates: a peer that joins, streams, sends heartbeats or leaves for a rank
 * that its certificate does not name is refused, and the job of the others continues.
 */
#include "tests/server/service/raw_job.h"
#include "tests/support/certificate.h"
#include "tests/support/support.h"

#include "common/base/log.h"

#include <stdio.h>
#include <string.h>

static struct error err;

static struct rpc_security security_of(const char *name)
{
    return (struct rpc_security){.ca_file = certificate_file("ca", "pem"),
                                 .cert_file = certificate_file(name, "pem"),
                                 .key_file = certificate_file(name, "key")};
}

/* Worker i of raw_job gets the certificate names[i]. */
static void open_bound(const char *const *names)
{
    struct service_config config = {.listen = {.host = "127.0.0.1"},
                                    .listen_origin = "test",
                                    .threads = 2,
                                    .timeout_ms = 20000,
                                    .bind_ranks = true};

    certificate_make_authority("ca");
    certificate_make("server", "ca", "subjectAltName=IP:127.0.0.1");
    certificate_make("rank0", "ca", "subjectAltName=URI:sparring:rank/0");
    certificate_make("rank1", "ca", "subjectAltName=DNS:worker.test,URI:sparring:rank/1");
    certificate_make("host", "ca",
                     "subjectAltName=IP:127.0.0.1,URI:sparring:rank/0,URI:sparring:rank/1");
    certificate_make("nobody", "ca", "subjectAltName=DNS:sparring:rank/0");
    config.security = security_of("server");
    log_set_level(LOG_QUIET);
    assert_ok(service_open(&config, &service, &err));
    for (unsigned i = 0; i < 3; i++) {
        struct rpc_security security = security_of(names[i]);

        raw_open_with(&workers[i], service_port(service), i, &security);
    }
}

static void check_refused(const char *what, struct rpc_result result, const char *named)
{
    char text[128];

    (void)snprintf(text, sizeof(text), "its certificate names %s, not 'sparring:rank/0'", named);
    check_result(what, result, STATUS_DENIED, text);
}

/* Join, stream, send a heartbeat and leave as rank 0 from workers[2], whose certificate does not
 * name it. */
static void try_as_rank_0(const char *named)
{
    struct raw_worker *w = &workers[2];
    struct join_request terms = raw_terms(0);

    w->rank = 0;
    raw_begin_join(w, &terms);
    check_refused("join", raw_end_join(w), named);
    raw_start_stream(w);
    raw_send_valid(w, CHUNK_PUSH, 0, 1, 1);
    check_refused("stream", raw_wait_closed(&w->stream), named);
    raw_start_attend(w);
    raw_send_heartbeat(w, "raw", 1);
    check_refused("heartbeat", raw_wait_closed(&w->attend), named);
    check_refused("leave", raw_leave(w, "raw", "sent by an unauthorized peer"), named);
}

START_TEST(test_a_rank_of_another_peer)
{
    if (!certificate_can_make())
        return;
    open_bound((const char *[]){"rank0", "rank1", _i == 0 ? "rank1" : "nobody"});
    try_as_rank_0(_i == 0 ? "'sparring:rank/1'" : "no rank"); /* no rank has joined */
    start_job();
    try_as_rank_0(_i == 0 ? "'sparring:rank/1'" : "no rank"); /* in the middle of a job */
    play_round(1);
    end_job();
    close_service();
}
END_TEST

START_TEST(test_two_ranks_of_one_host)
{
    if (!certificate_can_make())
        return;
    open_bound((const char *[]){"host", "host", "host"});
    start_job();
    play_round(1);
    end_job();
    close_service();
}
END_TEST

START_TEST(test_no_certificates)
{
    struct service_config config = {
        .listen = {.host = "127.0.0.1"}, .timeout_ms = 1000, .bind_ranks = true};

    assert_fails(service_open(&config, &service, &err), STATUS_INVALID, "give --tls-ca");
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("authorize", 100, LOOP_TEST(test_a_rank_of_another_peer, 0, 2),
                       TEST(test_two_ranks_of_one_host), TEST(test_no_certificates));
}
