/*
 * The State call over real gRPC: how many calls a session may have open.  The calls that stay open
 * are written as raw HTTP/2, by a peer whose flow control window is 0, so that no payload is sent.
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

static size_t append_frame(uint8_t *at, uint8_t kind, uint8_t flags, uint32_t stream,
                           const void *body, size_t size)
{
    const uint8_t head[FRAME_HEAD] = {
        [1] = (uint8_t)(size >> 8), (uint8_t)size, kind, flags, [8] = (uint8_t)stream};

    memcpy(at, head, sizeof(head));
    memcpy(at + sizeof(head), body, size);
    return sizeof(head) + size;
}

/* A header as a literal without indexing. */
static size_t append_header(uint8_t *at, const char *name, const char *value)
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

/* A connection whose streams have a receive window of 0: SETTINGS_INITIAL_WINDOW_SIZE 0. */
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

static void send_raw_request(int fd, uint32_t stream, const struct chunk_header *request)
{
    uint8_t block[512], message[5 + WIRE_CHUNK_HEAD_MAX] = {0}, out[1024];
    size_t size = append_header(block, ":method", "POST");

    size += append_header(block + size, ":scheme", "http");
    size += append_header(block + size, ":path", SERVICE_STATE);
    size += append_header(block + size, ":authority", "x");
    size += append_header(block + size, "te", "trailers");
    size += append_header(block + size, "content-type", "application/grpc");
    size = append_frame(out, HEADERS, END_HEADERS, stream, block, size);
    message[4] = (uint8_t)wire_pack_chunk(request, message + 5);
    size += append_frame(out + size, DATA, END_STREAM, stream, message, 5u + message[4]);
    send_all(fd, out, size);
}

static void receive_all(int fd, void *bytes, size_t size)
{
    ck_assert_int_eq(recv(fd, bytes, size, MSG_WAITALL), (ssize_t)size);
}

/* Wait until every call has received headers that do not end it: it was admitted and waits for its
 * peer to read. */
static void wait_admitted(int fd)
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

static struct rpc_result fetch_state(const struct chunk_header *request)
{
    struct raw_call *c = &workers[2].stream;

    raw_start_call(&workers[2], c, SERVICE_STATE);
    raw_send_on(c, request, 0, 0);
    rpc_call_send_done(c->call);
    return raw_wait_closed(c);
}

START_TEST(test_calls_that_are_not_read)
{
    const struct chunk_header request = {.kind = CHUNK_STATE, .rank = 1, .session = 101};
    const struct chunk_header other = {.kind = CHUNK_STATE, .rank = 0, .session = 100};
    struct rpc_result result;
    int fd;

    session_terms.update = 0; /* the optimizer state is on the server */
    open_service(LONG_MS, NULL);
    session_start(0.5f);
    /* Calls one after the other are not limited.  From the other session, because the server may
     * count the last one as open slightly longer than its caller. */
    for (unsigned i = 0; i < 3 * CALLS; i++)
        check_result("alone", fetch_state(&other), STATUS_OK, "");
    fd = connect_without_window();
    for (uint32_t i = 0; i < CALLS; i++)
        send_raw_request(fd, 2 * i + 1, &request);
    wait_admitted(fd);
    result = fetch_state(&request);
    ck_assert_int_ne(result.status, STATUS_OK);
    ck_assert_msg(
        strstr(result.text, "rank 1 asks for a state while 4 others of its are under way"), "%s",
        result.text);
    check_result("another rank", fetch_state(&other), STATUS_OK, "");
    for (unsigned i = 0; i < 2; i++)
        session_push_all(i, 1);
    for (unsigned i = 0; i < 2; i++)
        session_expect_all(i, 1, 0.5f - session_sum(1));
    (void)close(fd);
    do /* until the server has closed the calls; the test's own time-out ends this */
        result = fetch_state(&request);
    while (result.status != STATUS_OK);
    session_end();
    close_service();
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("state_fetch", 100, TEST(test_calls_that_are_not_read));
}
