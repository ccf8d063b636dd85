/*
 * Opening.  Every rank publishes where it listens; rank 0 collects the addresses and publishes the
 * table with a token that it drew, so the store serves two values per rank, not one per pair.  Then
 * every rank connects to the ranks below it and accepts those above.
 *
 * The order cannot deadlock: a connect succeeds as soon as the other listens (the kernel accepts
 * for it), which it does before it publishes; a rank sends its hellos before it accepts, replies to
 * those that it accepts, and reads the replies last.  A connection without the token is rejected.
 */
#include "common/base/clock.h"
#include "common/base/memory.h"
#include "common/base/net.h"
#include "common/base/strbuf.h"
#include "common/collective/host_address.h"
#include "common/collective/mesh/mesh_accept.h"
#include "common/collective/mesh/mesh_internal.h"
#include "common/store/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

struct opening {
    struct mesh *mesh;
    const struct mesh_config *config;
    int64_t deadline_ns;
    struct endpoint self;
    struct endpoint *peers; /* owned */
    struct mesh_hello hello;
    int listen_fd;
};

/* ---- through the store ---- */

static void make_key(const struct mesh_config *config, const char *what, unsigned rank, char *key,
                     size_t size)
{
    (void)snprintf(key, size, "%s/mesh/%s/%u", config->name, what, rank);
}

static enum status publish_self(const struct opening *o, struct error *err)
{
    char key[256];
    char text[300];

    make_key(o->config, "address", o->config->rank, key, sizeof(key));
    endpoint_format(&o->self, text, sizeof(text));
    return store_set(o->config->store, key, text, strlen(text), err);
}

/* After a time-out: name the ranks that have not published, in the same text on all ranks. */
static enum status unpublished_ranks_error(const struct opening *o, const struct error *why,
                                           struct error *err)
{
    struct strbuf missing = STRBUF_INIT;
    unsigned count = 0;
    enum status status;

    for (unsigned r = 0; r < o->config->world_size && why->status == STATUS_TIMEOUT; r++) {
        char key[256];
        char *text = NULL;
        size_t size;

        make_key(o->config, "address", r, key, sizeof(key));
        if (store_get(o->config->store, key, 0, &text, &size, NULL) != STATUS_OK)
            strbuf_addf(&missing, "%s%u", count++ == 0 ? "" : ", ", r);
        free(text);
    }
    if (count == 0)
        status = error_set(err, why->status, "%s", why->text);
    else
        status = error_set(err, why->status, "rank%s %s %s not published %s address: %.1000s",
                           count == 1 ? "" : "s", missing.text, count == 1 ? "has" : "have",
                           count == 1 ? "its" : "their", why->text);
    strbuf_release(&missing);
    return status;
}

/* Rank 0: collect all addresses and publish them, one per line, behind the token. */
static enum status publish_table(struct opening *o, struct error *err)
{
    struct strbuf table = STRBUF_INIT;
    unsigned char token[MESH_TOKEN_BYTES];
    char key[256];
    enum status status = STATUS_OK;

    if (getrandom(token, sizeof(token), 0) != (ssize_t)sizeof(token))
        return error_set_errno(err, errno, "cannot draw a random token");
    for (size_t i = 0; i < sizeof(token); i++)
        strbuf_addf(&table, "%02x", token[i]);
    for (unsigned r = 0; r < o->config->world_size && status == STATUS_OK; r++) {
        char *text = NULL;
        size_t size;

        make_key(o->config, "address", r, key, sizeof(key));
        status = store_get(o->config->store, key, clock_left_ms(o->deadline_ns), &text, &size, err);
        if (status == STATUS_OK)
            strbuf_addf(&table, "\n%s", text);
        free(text);
    }
    make_key(o->config, "table", 0, key, sizeof(key));
    if (status == STATUS_OK)
        status = store_set(o->config->store, key, table.text, table.length, err);
    strbuf_release(&table);
    return status;
}

static bool parse_token(const char *text, unsigned char *token)
{
    if (strspn(text, "0123456789abcdef") != 2 * (size_t)MESH_TOKEN_BYTES)
        return false;
    for (size_t i = 0; i < MESH_TOKEN_BYTES; i++) {
        char pair[3] = {text[2 * i], text[2 * i + 1], '\0'};

        token[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return true;
}

static enum status parse_table(struct opening *o, char *text, struct error *err)
{
    char *next = strchr(text, '\n');

    if (!next || !parse_token(text, o->hello.token))
        return error_set(err, STATUS_DATA, "the table of addresses in the store is malformed");
    for (unsigned r = 0; r < o->config->world_size; r++) {
        char *line = next ? next + 1 : text + strlen(text);
        enum status status;

        next = strchr(line, '\n');
        if (next)
            *next = '\0';
        status = endpoint_parse(line, "address in the store", &o->peers[r], err);
        if (status != STATUS_OK)
            return error_prefix(err, "rank %u: ", r);
    }
    return STATUS_OK;
}

static enum status read_table(struct opening *o, struct error *err)
{
    char key[256];
    char *text = NULL;
    size_t size;
    struct error why = {0};
    enum status status = STATUS_OK;

    if (o->config->rank == 0)
        status = publish_table(o, &why);
    make_key(o->config, "table", 0, key, sizeof(key));
    if (status == STATUS_OK)
        status =
            store_get(o->config->store, key, clock_left_ms(o->deadline_ns), &text, &size, &why);
    if (status != STATUS_OK)
        return unpublished_ranks_error(o, &why, err);
    status = parse_table(o, text, err);
    free(text);
    return status;
}

/* ---- connections ---- */

static enum status send_hello(const struct opening *o, int fd, struct error *err)
{
    struct mesh_message message = {.kind = MESH_HELLO, .hello = o->hello};
    unsigned char bytes[MESH_MESSAGE_MAX];
    size_t length = mesh_message_encode(&message, bytes);

    return net_send_all(fd, bytes, length, o->deadline_ns, err);
}

/* Keep the pid only if /proc shows that process here: same kernel and process namespace. */
static void note_peer(struct mesh *m, unsigned rank, int fd, const struct mesh_hello *hello)
{
    m->peers[rank].fd = fd;
    m->peers[rank].pid = hello->host == m->host ? hello->pid : 0;
}

static enum status connect_lower(struct opening *o, unsigned rank, struct error *err)
{
    const struct endpoint *peer = &o->peers[rank];
    int fd = -1;
    enum status status;

    if (endpoint_is_loopback(peer) && !endpoint_is_loopback(&o->self))
        return error_set(err, STATUS_CONFIG,
                         "rank %u published the loopback address %s, which this host (%s) cannot "
                         "reach: give that rank its interface",
                         rank, peer->host, o->self.host);
    status = net_connect(peer, o->deadline_ns, &fd, err);
    if (status == STATUS_OK) {
        o->mesh->peers[rank].fd = fd;
        status = send_hello(o, fd, err);
    }
    return status == STATUS_OK ? STATUS_OK : error_prefix(err, "to rank %u: ", rank);
}

static enum status read_hello(struct opening *o, unsigned rank, struct error *err)
{
    unsigned char bytes[MESH_MESSAGE_MAX];
    struct mesh_message message;
    int fd = o->mesh->peers[rank].fd;
    size_t length;
    enum status status = net_recv_all(fd, bytes, MESH_HEADER_BYTES, o->deadline_ns, err);

    length = status == STATUS_OK ? mesh_message_length(bytes) : 0;
    if (status == STATUS_OK && length > MESH_HEADER_BYTES)
        status = net_recv_all(fd, bytes + MESH_HEADER_BYTES, length - MESH_HEADER_BYTES,
                              o->deadline_ns, err);
    if (status != STATUS_OK)
        return error_prefix(err, "no answer from rank %u: ", rank);
    if (length == 0 || !mesh_message_decode(bytes, length, &message) ||
        message.kind != MESH_HELLO || message.hello.rank != rank ||
        message.hello.world_size != o->config->world_size ||
        memcmp(message.hello.token, o->hello.token, MESH_TOKEN_BYTES) != 0)
        return error_set(err, STATUS_PROTOCOL, "what answered is not rank %u of %u", rank,
                         o->config->world_size);
    note_peer(o->mesh, rank, fd, &message.hello);
    return STATUS_OK;
}

static enum status accept_higher(struct opening *o, struct error *err)
{
    unsigned left = o->config->world_size - 1 - o->config->rank;
    struct mesh_acceptor *acceptor = NULL;
    enum status status = mesh_acceptor_open(o->listen_fd, &o->hello, &acceptor, err);

    while (status == STATUS_OK && left > 0) {
        struct mesh_hello hello;
        int fd;

        status = mesh_acceptor_next(acceptor, o->deadline_ns, &fd, &hello, err);
        if (status != STATUS_OK)
            break;
        if (hello.rank <= o->config->rank || o->mesh->peers[hello.rank].fd >= 0) {
            mesh_acceptor_refuse(acceptor, fd, &hello);
            continue;
        }
        note_peer(o->mesh, hello.rank, fd, &hello);
        status = send_hello(o, fd, err);
        if (status != STATUS_OK)
            status = error_prefix(err, "to rank %u: ", hello.rank);
        left--;
    }
    if (status == STATUS_TIMEOUT)
        status = mesh_acceptor_missing(acceptor, o->mesh, err);
    mesh_acceptor_close(acceptor);
    return status;
}

static enum status connect_all(struct opening *o, struct error *err)
{
    enum status status = publish_self(o, err);

    if (status == STATUS_OK)
        status = read_table(o, err);
    for (unsigned r = 0; r < o->config->rank && status == STATUS_OK; r++)
        status = connect_lower(o, r, err);
    if (status == STATUS_OK)
        status = accept_higher(o, err);
    for (unsigned r = 0; r < o->config->rank && status == STATUS_OK; r++)
        status = read_hello(o, r, err);
    return status;
}

/* Kernel and process namespace, as a number: equal ones see each other's /proc/<pid>. */
static uint64_t host_number(void)
{
    char text[256] = "";
    size_t length = 0;
    ssize_t got;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    if (!file)
        return 0;
    length = fread(text, 1, 64, file);
    (void)fclose(file);
    got = readlink("/proc/self/ns/pid", text + length, sizeof(text) - length - 1);
    if (length == 0 || got <= 0)
        return 0;
    text[length + (size_t)got] = '\0';
    return signature_group_id(text);
}

enum status mesh_connect(struct mesh *m, const struct mesh_config *config, int64_t deadline_ns,
                         struct error *err)
{
    struct opening o = {.mesh = m, .config = config, .deadline_ns = deadline_ns, .listen_fd = -1};
    struct error local; /* the prefixes need one */
    enum status status;

    if (!err)
        err = &local;
    m->host = host_number();
    o.hello = (struct mesh_hello){.rank = config->rank,
                                  .world_size = config->world_size,
                                  .pid = m->host ? (uint64_t)getpid() : 0,
                                  .host = m->host};
    host_address_choose(config->interface_host, store_address(config->store), o.self.host);
    status = mem_calloc(config->world_size, sizeof(*o.peers), "addresses", &o.peers, err);
    if (status == STATUS_OK)
        status = net_listen(&o.self, "the control connections' interface", &o.listen_fd,
                            &o.self.port, err);
    if (status == STATUS_OK)
        status = connect_all(&o, err);
    if (o.listen_fd >= 0)
        (void)close(o.listen_fd);
    free(o.peers);
    return status;
}
