/*
 * The table of TLS and token options, and their conversion to struct rpc_security.  Constant data.
 */
#include "common/rpc/security_options.h"

#include <stddef.h>

#define AT(field) offsetof(struct security_options, field)

const struct option_spec security_specs[] = {
    {.name = "tls-ca",
     .env = "SPARRING_TLS_CA",
     .kind = OPTION_TEXT,
     .offset = AT(ca),
     .metavar = "FILE",
     .help = "Certificate authority (PEM) that signed the certificates of the other side."},
    {.name = "tls-cert",
     .env = "SPARRING_TLS_CERT",
     .kind = OPTION_TEXT,
     .offset = AT(cert),
     .metavar = "FILE",
     .help = "This process's certificate (PEM)."},
    {.name = "tls-key",
     .env = "SPARRING_TLS_KEY",
     .kind = OPTION_TEXT,
     .offset = AT(key),
     .metavar = "FILE",
     .help = "Its private key (PEM)."},
    {.name = "token-file",
     .env = "SPARRING_TOKEN_FILE",
     .kind = OPTION_TEXT,
     .offset = AT(token_file),
     .metavar = "FILE",
     .help =
         "File with the bearer token that the servers, and the store of rank 0, want with every "
         "call (16 to 512 letters, digits and -._~+/=); needs TLS."},
    {0},
};

struct rpc_security security_options_read(const struct security_options *o, bool insecure)
{
    return (struct rpc_security){
        .ca_file = o->ca,
        .cert_file = o->cert,
        .key_file = o->key,
        .token_file = o->token_file,
        .insecure = insecure,
    };
}
