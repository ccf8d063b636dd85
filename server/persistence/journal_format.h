/*
 * journal_format: the binary layout of a journal (described in journal.h), for journal.c and
 * journal_read.c only.
 */
#ifndef SPARRING_SERVER_PERSISTENCE_JOURNAL_FORMAT_H
#define SPARRING_SERVER_PERSISTENCE_JOURNAL_FORMAT_H

#include "server/persistence/journal.h"

#define JOURNAL_VERSION 1u
#define JOURNAL_ALIGN   8u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "journals are written as their structs lie in memory");

static const char journal_magic[16] = "sparring journal"; /* without its NUL */
static const uint32_t journal_record_magic = 0x4a525053;  /* "SPRJ" */

struct journal_file_head {
    char magic[16];
    uint32_t version;
    uint32_t world_size;
    uint64_t digest;
    uint64_t generation;
    uint32_t zero;
    uint32_t crc; /* of the fields before it */
};
_Static_assert(sizeof(struct journal_file_head) == JOURNAL_HEAD, "no padding");

struct journal_record_head {
    uint32_t magic;
    uint32_t kind;
    uint32_t partition;
    uint32_t clocks; /* 0, or the world size */
    uint64_t step;
    double rate;
    uint64_t payload_bytes;
    uint32_t body_crc; /* of clocks, payload and flags */
    uint32_t crc;      /* of the fields before it */
};
_Static_assert(sizeof(struct journal_record_head) == JOURNAL_RECORD_HEAD, "no padding");

/* The file's head with its checksum. */
struct journal_file_head journal_make_head(const struct journal_head *h);

#endif
