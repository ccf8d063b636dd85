/*
 * wire_store: packs and unpacks the store's request and reply, with the rules of wire.c.
 *
 * One request type serves all of the store's methods, and any of its fields may be empty.
 * No state, no locks.
 */
#include "common/base/memory.h"
#include "common/wire/wire_internal.h"

#include "store.pb-c.h"

#include <stdlib.h>
#include <string.h>

/* A copy with a NUL after it, so that a text can be used as a C string. */
static enum status copy_bytes(const ProtobufCBinaryData *from, const char *what,
                              uint8_t **ret_bytes, size_t *ret_size, struct error *err)
{
    uint8_t *copy;
    enum status status = mem_calloc(from->len + 1, 1, what, &copy, err);

    if (status != STATUS_OK)
        return status;
    if (from->len > 0)
        memcpy(copy, from->data, from->len);
    *ret_bytes = copy;
    *ret_size = from->len;
    return STATUS_OK;
}

static enum status copy_texts(char *const *texts, size_t count, const char *what, char ***ret_texts,
                              size_t *ret_count, struct error *err)
{
    enum status status = mem_calloc(count, sizeof(**ret_texts), what, ret_texts, err);

    for (size_t i = 0; status == STATUS_OK && i < count; i++) {
        status = mem_strdup(texts[i], &(*ret_texts)[i], err);
        if (status == STATUS_OK)
            *ret_count = i + 1;
    }
    return status;
}

static void free_texts(char **texts, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(texts[i]);
    free(texts);
}

static ProtobufCBinaryData as_binary_data(uint8_t *bytes, size_t size)
{
    return (ProtobufCBinaryData){.len = size, .data = bytes};
}

enum status wire_pack_store_request(const struct store_request *m, uint8_t **ret_bytes,
                                    size_t *ret_size, struct error *err)
{
    Sparring__V1__StoreRequest p;
    enum status status;

    sparring__v1__store_request__init(&p);
    p.key = wire_text_or_empty(m->key);
    p.value = as_binary_data(m->value, m->value_size);
    p.expected = as_binary_data(m->expected, m->expected_size);
    p.delta = m->delta;
    p.n_keys = m->key_count;
    p.keys = m->keys;
    p.timeout_ms = m->timeout_ms;
    status = wire_check_text(p.key, "the key", err);
    for (size_t i = 0; status == STATUS_OK && i < m->key_count; i++)
        status = wire_check_text(m->keys[i], "a key", err);
    return status == STATUS_OK ? wire_pack(&p.base, WIRE_STORE_MAX, ret_bytes, ret_size, err)
                               : status;
}

enum status wire_unpack_store_request(const uint8_t *bytes, size_t size, struct store_request *ret,
                                      struct error *err)
{
    struct arena arena;
    Sparring__V1__StoreRequest *m;
    enum status status = wire_unpack(&sparring__v1__store_request__descriptor, bytes, size,
                                     WIRE_STORE_MAX, &arena, &m, err);

    if (status != STATUS_OK)
        goto out;
    ret->delta = m->delta;
    ret->timeout_ms = m->timeout_ms;
    status = mem_strdup(m->key, &ret->key, err);
    if (status == STATUS_OK)
        status = copy_bytes(&m->value, "store value", &ret->value, &ret->value_size, err);
    if (status == STATUS_OK)
        status = copy_bytes(&m->expected, "store value", &ret->expected, &ret->expected_size, err);
    if (status == STATUS_OK)
        status = copy_texts(m->keys, m->n_keys, "store keys", &ret->keys, &ret->key_count, err);
out:
    arena_release(&arena);
    if (status != STATUS_OK)
        wire_release_store_request(ret);
    return status;
}

void wire_release_store_request(struct store_request *m)
{
    free(m->key);
    free(m->value);
    free(m->expected);
    free_texts(m->keys, m->key_count);
    *m = (struct store_request){0};
}

enum status wire_pack_store_reply(const struct store_reply *m, uint8_t **ret_bytes,
                                  size_t *ret_size, struct error *err)
{
    Sparring__V1__StoreReply p;

    sparring__v1__store_reply__init(&p);
    p.value = as_binary_data(m->value, m->value_size);
    p.number = m->number;
    p.found = m->found;
    p.n_missing = m->missing_count;
    p.missing = m->missing;
    return wire_pack(&p.base, WIRE_STORE_MAX, ret_bytes, ret_size, err);
}

enum status wire_unpack_store_reply(const uint8_t *bytes, size_t size, struct store_reply *ret,
                                    struct error *err)
{
    struct arena arena;
    Sparring__V1__StoreReply *m;
    enum status status = wire_unpack(&sparring__v1__store_reply__descriptor, bytes, size,
                                     WIRE_STORE_MAX, &arena, &m, err);

    if (status != STATUS_OK)
        goto out;
    ret->number = m->number;
    ret->found = m->found != 0;
    status = copy_bytes(&m->value, "store value", &ret->value, &ret->value_size, err);
    if (status == STATUS_OK)
        status = copy_texts(m->missing, m->n_missing, "missing keys", &ret->missing,
                            &ret->missing_count, err);
out:
    arena_release(&arena);
    if (status != STATUS_OK)
        wire_release_store_reply(ret);
    return status;
}

void wire_release_store_reply(struct store_reply *m)
{
    free(m->value);
    free_texts(m->missing, m->missing_count);
    *m = (struct store_reply){0};
}
