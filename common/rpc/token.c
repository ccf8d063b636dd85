/*
 * token: the bearer token, a secret that each server and worker reads from a file.
 *
 * It proves that a peer belongs to the deployment, not its identity (the certificate does that),
 * and it is worthless once leaked.  So it is sent only where it cannot be intercepted and the
 * server cannot be impersonated: over TLS or a Unix socket.  It never appears in a log or error
 * text. No locks: a token is constant after rpc_token_open.
 */
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/rpc/rpc_internal.h"

#include <grpc/slice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_KEY     "authorization"
#define FILE_BYTES_MAX 4096
#define TOKEN_SYMBOLS  "-._~+/=" /* beside letters and digits: token68 of RFC 7235 */

static enum status check_transport(const struct rpc_security *security,
                                   const struct endpoint *endpoint, struct error *err)
{
    bool tls = false;
    enum status status = rpc_security_check(security, &tls, err);

    if (status == STATUS_OK && !tls && !endpoint_unix_path(endpoint))
        status = error_set(err, STATUS_INVALID,
                           "the token of '%s' goes only over TLS or a Unix socket: give the three "
                           "TLS files, too",
                           security->token_file);
    return status;
}

static bool is_token_character(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr(TOKEN_SYMBOLS, c) != NULL);
}

/* The file has one line.  Its content must not appear in the error. */
static enum status check_content(const char *path, const char *text, size_t size,
                                 size_t *ret_length, struct error *err)
{
    size_t length = 0;
    size_t end = size;

    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r'))
        end--;
    while (length < end && is_token_character(text[length]))
        length++;
    if (length < end)
        return error_set(
            err, STATUS_INVALID,
            "the token file '%s' has a byte at position %zu that no token has (letters, "
            "digits and " TOKEN_SYMBOLS ", in one line)",
            path, length);
    if (length < RPC_TOKEN_MIN || length > RPC_TOKEN_MAX)
        return error_set(err, STATUS_INVALID,
                         "the token in '%s' has %zu characters (allowed: %d to %d)", path, length,
                         RPC_TOKEN_MIN, RPC_TOKEN_MAX);
    *ret_length = length;
    return STATUS_OK;
}

static void warn_of_readers(const char *path)
{
    struct stat info;

    /* Kubernetes mounts secrets as root's, for the group of the pod. */
    if (stat(path, &info) == 0 &&
        (info.st_mode & S_IROTH || (info.st_mode & S_IRGRP && info.st_uid == geteuid())))
        log_warning("the token file '%s' can be read by others (mode %03o; 600 keeps it secret)",
                    path, (unsigned)info.st_mode & 0777u);
}

enum status rpc_token_open(const struct rpc_security *security, const struct endpoint *endpoint,
                           struct rpc_token *ret, struct error *err)
{
    const char *path = security->token_file;
    char *text = NULL;
    size_t size = 0;
    size_t length = 0;
    enum status status;

    memset(ret, 0, sizeof(*ret));
    if (!path || path[0] == '\0')
        return STATUS_OK;
    status = check_transport(security, endpoint, err);
    if (status == STATUS_OK)
        status = file_read(path, FILE_BYTES_MAX, &text, &size, err);
    if (status == STATUS_OK)
        status = check_content(path, text, size, &length, err);
    if (status == STATUS_OK) {
        warn_of_readers(path);
        ret->length =
            (size_t)snprintf(ret->header, sizeof(ret->header), "Bearer %.*s", (int)length, text);
    }
    if (text)
        explicit_bzero(text, size);
    free(text);
    return status;
}

void rpc_token_close(struct rpc_token *token)
{
    explicit_bzero(token, sizeof(*token));
}

/* Compare in constant time: every byte is read, whatever was sent.  The scheme's name may be in any
 * case. */
static bool is_header_equal(const struct rpc_token *token, const uint8_t *given, size_t size)
{
    struct rpc_token other = {.length = size};
    unsigned difference = size != token->length;

    if (size > sizeof(other.header))
        return false; /* longer than any token: reveals nothing about this one */
    if (size > 0)
        memcpy(other.header, given, size);
    for (size_t i = 0; i < sizeof(other.header); i++) {
        unsigned fold = i < strlen("Bearer") ? 0x20 : 0;

        difference |=
            ((unsigned char)other.header[i] | fold) ^ ((unsigned char)token->header[i] | fold);
    }
    explicit_bzero(&other, sizeof(other));
    return difference == 0;
}

bool rpc_token_matches(const struct rpc_token *token, const grpc_metadata_array *metadata)
{
    bool matches = false;
    unsigned found = 0;

    for (size_t i = 0; i < metadata->count; i++) {
        const grpc_metadata *m = &metadata->metadata[i];

        if (grpc_slice_str_cmp(m->key, HEADER_KEY) != 0)
            continue;
        found++;
        matches =
            is_header_equal(token, GRPC_SLICE_START_PTR(m->value), GRPC_SLICE_LENGTH(m->value));
    }
    return found == 1 && matches;
}

grpc_metadata rpc_token_metadata(const struct rpc_token *token)
{
    return (grpc_metadata){
        .key = grpc_slice_from_static_string(HEADER_KEY),
        .value = grpc_slice_from_copied_buffer(token->header, token->length),
    };
}
