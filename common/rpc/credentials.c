/*
 * credentials: plaintext or mutual TLS from PEM files.
 *
 * All three files or none, on both sides: a server with a certificate but no authority would accept
 * every client, and the core library of current distributions has unpatched vulnerabilities that
 * only holders of a certificate should be able to reach.  Files are read once, at open.
 */
#include "common/base/file.h"
#include "common/rpc/rpc_internal.h"

#include <stdlib.h>

#define PEM_BYTES_MAX ((size_t)1 << 20)

struct pem {
    char *ca; /* owned, as the others; NULL: plaintext */
    char *cert;
    char *key;
};

static bool is_file_given(const char *path)
{
    return path && path[0] != '\0';
}

enum status rpc_security_check(const struct rpc_security *security, bool *ret_tls,
                               struct error *err)
{
    int given = is_file_given(security->ca_file) + is_file_given(security->cert_file) +
                is_file_given(security->key_file);

    if (given == 1 || given == 2)
        return error_set(err, STATUS_INVALID, "TLS needs three files; missing:%s%s%s",
                         is_file_given(security->ca_file) ? "" : " certificate authority",
                         is_file_given(security->cert_file) ? "" : " certificate",
                         is_file_given(security->key_file) ? "" : " key");
    *ret_tls = given == 3;
    return STATUS_OK;
}

static void pem_release(struct pem *pem)
{
    free(pem->ca);
    free(pem->cert);
    free(pem->key);
}

/* The caller releases `pem`, also on failure. */
static enum status pem_read(const struct rpc_security *security, struct pem *pem, struct error *err)
{
    bool tls = false;
    size_t size;
    enum status status = rpc_security_check(security, &tls, err);

    if (status != STATUS_OK || !tls)
        return status;
    status = file_read(security->ca_file, PEM_BYTES_MAX, &pem->ca, &size, err);
    if (status == STATUS_OK)
        status = file_read(security->cert_file, PEM_BYTES_MAX, &pem->cert, &size, err);
    if (status == STATUS_OK)
        status = file_read(security->key_file, PEM_BYTES_MAX, &pem->key, &size, err);
    return status;
}

/* Core gives no more detail. */
static enum status certificate_error(const struct rpc_security *security, struct error *err)
{
    return error_set(err, STATUS_INVALID, "cannot use the certificate '%s' with key '%s'",
                     security->cert_file, security->key_file);
}

enum status rpc_server_credentials(const struct rpc_security *security,
                                   grpc_server_credentials **ret, struct error *err)
{
    struct pem pem = {0};
    grpc_server_credentials *credentials = NULL;
    enum status status = pem_read(security, &pem, err);

    if (status == STATUS_OK && !pem.ca) {
        credentials = grpc_insecure_server_credentials_create();
    } else if (status == STATUS_OK) {
        grpc_ssl_pem_key_cert_pair pair = {pem.key, pem.cert};

        credentials = grpc_ssl_server_credentials_create_ex(
            pem.ca, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
    }
    pem_release(&pem);
    if (status == STATUS_OK && !credentials)
        status = certificate_error(security, err);
    if (status == STATUS_OK)
        *ret = credentials;
    return status;
}

enum status rpc_client_credentials(const struct rpc_security *security,
                                   grpc_channel_credentials **ret, struct error *err)
{
    struct pem pem = {0};
    grpc_channel_credentials *credentials = NULL;
    enum status status = pem_read(security, &pem, err);

    if (status == STATUS_OK && !pem.ca) {
        credentials = grpc_insecure_credentials_create();
    } else if (status == STATUS_OK) {
        grpc_ssl_pem_key_cert_pair pair = {pem.key, pem.cert};

        credentials = grpc_ssl_credentials_create(pem.ca, &pair, NULL, NULL);
    }
    pem_release(&pem);
    if (status == STATUS_OK && !credentials)
        status = certificate_error(security, err);
    if (status == STATUS_OK)
        *ret = credentials;
    return status;
}
