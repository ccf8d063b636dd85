/*
 * wire_standby: packs and unpacks a standby daemon's messages, with the rules of wire.c.  No state,
 * no locks.
 */
#include "common/wire/wire_standby.h"

#include "common/base/memory.h"
#include "common/wire/wire_internal.h"

#include "standby.pb-c.h"

#include <stdlib.h>
#include <string.h>

static enum status check_texts(const struct text_list *texts, const char *what, struct error *err)
{
    enum status status = STATUS_OK;

    if (texts->failed)
        return error_set(err, STATUS_NO_MEMORY, "no memory for %s", what);
    for (size_t i = 0; i < texts->length && status == STATUS_OK; i++)
        status = wire_check_text(texts->texts[i], what, err);
    return status;
}

enum status wire_pack_standby_request(const struct standby_request *m, uint8_t **ret_bytes,
                                      size_t *ret_size, struct error *err)
{
    struct standby_request copy = *m; /* protobuf-c's pointers are not const */
    Sparring__V1__StandbyRequest p;
    enum status status = check_texts(&m->words, "a word of a command line", err);

    if (status == STATUS_OK)
        status = check_texts(&m->variables, "a variable", err);
    if (status == STATUS_OK)
        status = wire_check_text(m->holder, "the name of who uses a host", err);
    if (status != STATUS_OK)
        return status;
    sparring__v1__standby_request__init(&p);
    p.holder = copy.holder;
    p.program = copy.program;
    p.n_words = m->words.length;
    p.words = m->words.texts;
    p.n_variables = m->variables.length;
    p.variables = m->variables.texts;
    p.stop = m->stop;
    return wire_pack(&p.base, WIRE_STANDBY_MAX, ret_bytes, ret_size, err);
}

static enum status copy_texts(char *const *texts, size_t count, const char *what,
                              struct text_list *ret, struct error *err)
{
    if (count > WIRE_STANDBY_TEXTS_MAX)
        return error_set(err, STATUS_DATA, "%zu %s, the limit is %u", count, what,
                         WIRE_STANDBY_TEXTS_MAX);
    for (size_t i = 0; i < count; i++)
        text_list_addf(ret, "%s", texts[i]);
    return ret->failed ? error_set(err, STATUS_NO_MEMORY, "no memory for %s", what) : STATUS_OK;
}

enum status wire_unpack_standby_request(const uint8_t *bytes, size_t size,
                                        struct standby_request *ret, struct error *err)
{
    struct arena arena;
    Sparring__V1__StandbyRequest *m;
    enum status status = wire_unpack(&sparring__v1__standby_request__descriptor, bytes, size,
                                     WIRE_STANDBY_MAX, &arena, &m, err);

    if (status != STATUS_OK)
        goto out;
    ret->stop = m->stop != 0;
    status = wire_copy_text(m->holder, "holder", ret->holder, sizeof(ret->holder), err);
    if (status == STATUS_OK)
        status = wire_copy_text(m->program, "program", ret->program, sizeof(ret->program), err);
    if (status == STATUS_OK)
        status = copy_texts(m->words, m->n_words, "words", &ret->words, err);
    if (status == STATUS_OK)
        status = copy_texts(m->variables, m->n_variables, "variables", &ret->variables, err);
out:
    arena_release(&arena);
    if (status != STATUS_OK)
        wire_release_standby_request(ret);
    return status;
}

void wire_release_standby_request(struct standby_request *m)
{
    text_list_release(&m->words);
    text_list_release(&m->variables);
    *m = (struct standby_request){0};
}

enum status wire_pack_standby_reply(const struct standby_reply *m, uint8_t **ret_bytes,
                                    size_t *ret_size, struct error *err)
{
    struct standby_reply copy = *m;
    Sparring__V1__StandbyReply p;
    enum status status = wire_check_text(m->name, "the name of a file", err);

    if (status != STATUS_OK)
        return status;
    sparring__v1__standby_reply__init(&p);
    p.kind = (uint32_t)m->kind;
    p.name = copy.name;
    p.offset = m->offset;
    p.crc = m->crc;
    p.code = m->code;
    p.data.data = m->data;
    p.data.len = m->size;
    return wire_pack(&p.base, WIRE_STANDBY_MAX, ret_bytes, ret_size, err);
}

enum status wire_unpack_standby_reply(const uint8_t *bytes, size_t size, struct standby_reply *ret,
                                      struct error *err)
{
    struct arena arena;
    Sparring__V1__StandbyReply *m;
    enum status status = wire_unpack(&sparring__v1__standby_reply__descriptor, bytes, size,
                                     WIRE_STANDBY_MAX, &arena, &m, err);

    if (status != STATUS_OK)
        goto out;
    if (m->kind < STANDBY_ALIVE || m->kind > STANDBY_END || m->data.len > WIRE_STANDBY_DATA_MAX) {
        status = error_set(err, STATUS_DATA, "a reply of kind %u with %zu bytes of data", m->kind,
                           m->data.len);
        goto out;
    }
    *ret = (struct standby_reply){.kind = (enum standby_kind)m->kind,
                                  .offset = m->offset,
                                  .crc = m->crc,
                                  .code = m->code,
                                  .size = m->data.len};
    status = wire_copy_text(m->name, "name", ret->name, sizeof(ret->name), err);
    if (status == STATUS_OK && ret->size > 0)
        status = mem_calloc(ret->size, 1, "data of a reply", &ret->data, err);
    if (status == STATUS_OK && ret->size > 0)
        memcpy(ret->data, m->data.data, ret->size);
out:
    arena_release(&arena);
    return status;
}
