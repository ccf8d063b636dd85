/*
 * test_protoset: the installed descriptor set must contain exactly the methods that our servers
 * serve, and define the message types that they use.  Parsed here without a protobuf library, since
 * only length-delimited fields of FileDescriptorSet are needed (numbers: descriptor.proto).
 */
#include "common/base/file.h"
#include "common/base/strbuf.h"
#include "common/collective/ring/ring_grpc.h"
#include "common/store/store_server.h"
#include "experiments/standby/standby.h"
#include "server/service/service_internal.h"
#include "tests/support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 64

struct bytes {
    const uint8_t *at;
    size_t size;
};

struct names {
    char text[NAMES_MAX][128];
    size_t length;
};

/* The content of the descriptor set; types that methods use. */
static struct names methods, messages, used_types;
static struct error err;

static uint64_t take_varint(struct bytes *b)
{
    uint64_t value = 0;

    for (unsigned shift = 0; b->size > 0 && shift < 64; shift += 7) {
        uint8_t byte = *b->at++;

        b->size--;
        value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return value;
    }
    ck_abort_msg("a broken varint");
    return 0;
}

/* Read the next field; *ret: its bytes if it is length-delimited, else empty. */
static bool next_field(struct bytes *b, unsigned *ret_number, struct bytes *ret)
{
    uint64_t key, value;

    if (b->size == 0)
        return false;
    key = take_varint(b);
    value = take_varint(b);
    *ret_number = (unsigned)(key >> 3);
    *ret = (struct bytes){0};
    ck_assert_msg((key & 7) == 2 || (key & 7) == 0, "wire type %u", (unsigned)(key & 7));
    if ((key & 7) == 0)
        return true;
    ck_assert_uint_le(value, b->size);
    *ret = (struct bytes){b->at, (size_t)value};
    b->at += value;
    b->size -= value;
    return true;
}

static struct bytes find_field(struct bytes b, unsigned wanted)
{
    struct bytes field, found = {0};
    unsigned number;

    while (next_field(&b, &number, &field))
        if (number == wanted)
            found = field;
    return found;
}

__attribute__((format(printf, 2, 3))) static void add_name(struct names *names, const char *format,
                                                           ...)
{
    va_list args;

    ck_assert_uint_lt(names->length, NAMES_MAX);
    va_start(args, format);
    (void)vsnprintf(names->text[names->length++], sizeof(names->text[0]), format, args);
    va_end(args);
}

static bool has_name(const struct names *names, const char *text)
{
    for (size_t i = 0; i < names->length; i++)
        if (strcmp(names->text[i], text) == 0)
            return true;
    return false;
}

static void read_service(struct bytes package, struct bytes service)
{
    struct bytes name = find_field(service, 1), method;
    unsigned number;

    while (next_field(&service, &number, &method)) {
        struct bytes method_name;

        if (number != 2)
            continue;
        method_name = find_field(method, 1);
        add_name(&methods, "/%.*s.%.*s/%.*s", (int)package.size, (const char *)package.at,
                 (int)name.size, (const char *)name.at, (int)method_name.size,
                 (const char *)method_name.at);
        for (unsigned type = 2; type <= 3; type++) {
            struct bytes text = find_field(method, type);

            add_name(&used_types, "%.*s", (int)text.size, (const char *)text.at);
        }
    }
}

static void read_file(struct bytes file)
{
    struct bytes package = find_field(file, 2), field;
    unsigned number;

    while (next_field(&file, &number, &field)) {
        if (number == 4) {
            struct bytes name = find_field(field, 1);

            add_name(&messages, ".%.*s.%.*s", (int)package.size, (const char *)package.at,
                     (int)name.size, (const char *)name.at);
        } else if (number == 6) {
            read_service(package, field);
        }
    }
}

static void read_protoset(void)
{
    char *text;
    struct bytes set, file;
    unsigned number;
    size_t size;

    assert_ok(file_read(PROTOSET, 1 << 20, &text, &size, &err));
    set = (struct bytes){(const uint8_t *)text, size};
    while (next_field(&set, &number, &file))
        read_file(file);
    free(text);
}

/* Add the methods of a server to `served`; "other" counts unknown calls. */
static void add_served(const struct rpc_server *server, struct names *served)
{
    struct rpc_call_counts counts;

    for (size_t i = 0; i < rpc_server_method_count(server); i++) {
        rpc_server_counts(server, i, &counts);
        if (strcmp(counts.path, "other") != 0 && !has_name(served, counts.path))
            add_name(served, "%s", counts.path);
    }
}

START_TEST(test_methods_match_the_servers)
{
    const struct endpoint loopback = {.host = "127.0.0.1"};
    struct service_config config = {.listen = loopback, .threads = 1, .timeout_ms = 1000};
    struct rpc_security security = {0};
    struct names served = {0};
    struct service *service;
    struct store_server *store;

    read_protoset();
    assert_ok(service_open(&config, &service, &err));
    assert_ok(store_server_open(&loopback, "test", &security, &store, &err));
    add_served(service->rpc, &served);
    add_served(store_server_rpc(store), &served);
    add_name(&served, "%s", GRPC_LINK_PATH); /* the only method of a ring's server ... */
    add_name(&served, "%s", STANDBY_PATH);   /* ... and of a standby daemon */
    store_server_close(store);
    service_close(service);
    for (size_t i = 0; i < served.length; i++)
        ck_assert_msg(has_name(&methods, served.text[i]), "the set lacks '%s'", served.text[i]);
    for (size_t i = 0; i < methods.length; i++)
        ck_assert_msg(has_name(&served, methods.text[i]), "no server serves '%s'", methods.text[i]);
    ck_assert_uint_eq(methods.length, served.length);
}
END_TEST

START_TEST(test_messages_are_defined)
{
    read_protoset();
    ck_assert_uint_gt(used_types.length, 0);
    ck_assert_uint_eq(used_types.length, 2 * methods.length);
    for (size_t i = 0; i < used_types.length; i++)
        ck_assert_msg(has_name(&messages, used_types.text[i]), "'%s' is not in the set",
                      used_types.text[i]);
}
END_TEST

int main(void)
{
    return SUPPORT_RUN("protoset", 60, TEST(test_methods_match_the_servers),
                       TEST(test_messages_are_defined));
}
