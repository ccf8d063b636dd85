/*
 * The State call over real gRPC: what a session may have open at once.  The calls that stay open
 * are HTTP/2 by hand, by a peer whose flow control lets no payload through.
 */
#include "tests/server/service/session_job.h"
#include "tests/support/support.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CALLS   4u
#define WAIT_S  20
#define DATA    0
#define HEADERS 1

enum { END_STREAM = 1, END_HEADERS = 4, FRAME_HEAD = 9 };

static size_t put_frame(uint8_t *at, uint8_t kind, uint8_t flags, uint32_t stream, const void *body,
                        size_t size)
{
    const uint8_t head[FRAME_HEAD] = {
        [1] = (uint8_t)(size >> 8), (uint8_t)size, kind, flags, [8] = (uint8_t)stream};

    memcpy(at, head, sizeof(head));
    memcpy(at + sizeof(head), body, size);
    return sizeof(head) + size;
}

/* A header as a literal that no table keeps. */
static size_t put_header(uint8_t *at, const char *name, const char *value)
{
    uint8_t *begin = at;

    *at++ = 0;
    *at++ = (uint8_t)strlen(name);
    at = (uint8_t *)mempcpy(at, name, strlen(name));
    *at++ = (uint8_t)strlen(value);
    at = (uint8_t *)mempcpy(at, value, strlen(value));
    return (size_t)(at - begin);
}

static void send_all(int fd, const void *bytes, size_t size)
{
    ck_assert_int_eq(send(fd, bytes, size, MSG_NOSIGNAL), (ssize_t)size);
}

/* A connection whose streams may carry nothing back: SETTINGS_INITIAL_WINDOW_SIZE 0. */
static int connect_without_window(void)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    static const uint8_t settings[FRAME_HEAD + 6] = {[2] = 6, [3] = 4, [10] = 4};
    const struct timeval wait = {.tv_sec = WAIT_S};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(service_port(service)),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    send_all(fd, preface, strlen(preface));
    send_all(fd, settings, sizeof(settings));
    return fd;
}

static void ask_by_hand(int fd, uint32_t stream, const struct chunk_header *question)
{
    uint8_t block[512], message[5 + WIRE_CHUNK_HEAD_MAX] = {0}, out[1024];
    size_t size = put_header(block, ":method", "POST");

    size += put_header(block + size, ":scheme", "http");
    size += put_header(block + size, ":path", SERVICE_STATE);
    size += put_header(block + size, ":authority", "x");
    size += put_header(block + size, "te", "trailers");
    size += put_header(block + size, "content-type", "application/grpc");
    size = put_frame(out, HEADERS, END_HEADERS, stream, block, size);
    message[4] = (uint8_t)wire_pack_chunk(question, message + 5);
    size += put_frame(out + size, DATA, END_STREAM, stream, message, 5u + message[4]);
    send_all(fd, out, size);
}

static void receive_all(int fd, void *bytes, size_t size)
{
    ck_assert_int_eq(recv(fd, bytes, size, MSG_WAITALL), (ssize_t)size);
}

/* Until every call has its headers, which do not end it: it was let in, and waits to be read. */
static void wait_let_in(int fd)
{
    unsigned seen = 0;

    while (seen < CALLS) {
        uint8_t head[FRAME_HEAD], body[1 << 14];

        receive_all(fd, head, sizeof(head));
        receive_all(fd, body, (size_t)head[1] << 8 | head[2]);
        ck_assert_msg(head[3] != HEADERS || !(head[4] & END_STREAM), "call %d was ended", head[8]);
        seen += head[3] == HEADERS;
    }
}

static struct rpc_result ask(const struct chunk_header *question)
{
    struct raw_call *c = &workers[2].stream;

    raw_start_call(&workers[2], c, SERVICE_STATE);
    raw_send_on(c, question, 0, 0);
    rpc_call_send_done(c->call);
    return raw_wait_closed(c);
}

START_TEST(test_calls_that_nobody_reads)
{
    const struct chunk_header question = {.kind = CHUNK_STATE, .rank = 1, .session = 101};
    const struct chunk_header other = {.kind = CHUNK_STATE, .rank = 0, .session = 100};
    struct rpc_result result;
    int fd;

    session_terms.update = 0; /* there is a state on the server */
    open_service(LONG_MS, NULL);
    session_start(0.5f);
    /* One after the other as many as it likes.  Of the other session: the server may count the last
     * one as open for a moment longer than its caller. */
    for (unsigned i = 0; i < 3 * CALLS; i++)
        check_result("alone", ask(&other), STATUS_OK, "");
    fd = connect_without_window();
    for (uint32_t i = 0; i < CALLS; i++)
        ask_by_hand(fd, 2 * i + 1, &question);
    wait_let_in(fd);
    result = ask(&question);
    ck_assert_int_ne(result.status, STATUS_OK);
    ck_assert_msg(
        strstr(result.text, "rank 1 asks for a state while 4 others of its are under way"), "%s",
        result.text);
    check_result("another rank", ask(&other), STATUS_OK, "");
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 1);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 1, 0.5f - session_sum(1));
    (void)close(fd);
    do /* until the server has noticed; the test's own limit ends this */
        result = ask(&question);
    while (result.status != STATUS_OK);
    session_end();
    close_service();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("state_fetch");
    TCase *tests = tcase_create("state_fetch");

    tcase_set_timeout(tests, 100);
    tcase_add_test(tests, test_calls_that_nobody_reads);
    suite_add_tcase(suite, tests);
    return support_run(suite);
}
