/*
 * wire_standby: the messages of proto/standby.proto.
 */
#ifndef SPARRING_COMMON_WIRE_WIRE_STANDBY_H
#define SPARRING_COMMON_WIRE_WIRE_STANDBY_H

#include "common/base/error.h"
#include "common/base/text_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_STANDBY_MAX       (256u << 10) /* packed bytes of a message */
#define WIRE_STANDBY_DATA_MAX  (64u << 10)
#define WIRE_STANDBY_NAME_MAX  512
#define WIRE_STANDBY_TEXTS_MAX 4096u /* words, and variables */

/* Everything is owned (wire_release_standby_request). */
struct standby_request {
    char holder[128];
    char program[64];
    struct text_list words, variables;
    bool stop;
};

enum standby_kind {
    STANDBY_ALIVE = 1,
    STANDBY_OUTPUT = 2, /* standard output */
    STANDBY_ERRORS = 3, /* standard error */
    STANDBY_FILE = 4,
    STANDBY_END = 5,
};

struct standby_reply {
    enum standby_kind kind; /* in range */
    char name[WIRE_STANDBY_NAME_MAX];
    uint64_t offset;
    uint32_t crc;
    uint32_t code;
    uint8_t *data; /* owned after unpack: free; borrowed while packing */
    size_t size;
};

/* As the other messages (common/wire/wire.h): each pack allocates *ret_bytes (free), each unpack
 * fills a zeroed struct; one that failed needs no release. */
enum status wire_pack_standby_request(const struct standby_request *m, uint8_t **ret_bytes,
                                      size_t *ret_size, struct error *err);
enum status wire_unpack_standby_request(const uint8_t *bytes, size_t size,
                                        struct standby_request *ret, struct error *err);
enum status wire_pack_standby_reply(const struct standby_reply *m, uint8_t **ret_bytes,
                                    size_t *ret_size, struct error *err);
enum status wire_unpack_standby_reply(const uint8_t *bytes, size_t size, struct standby_reply *ret,
                                      struct error *err);
void wire_release_standby_request(struct standby_request *m);

#endif
