/*
 * security_options: the options of every program that speaks gRPC to others: mutual TLS and a
 * token.
 */
#ifndef SPARRING_COMMON_RPC_SECURITY_OPTIONS_H
#define SPARRING_COMMON_RPC_SECURITY_OPTIONS_H

#include "common/option/option.h"
#include "common/rpc/rpc.h"

struct security_options {
    char ca[OPTION_TEXT_MAX], cert[OPTION_TEXT_MAX], key[OPTION_TEXT_MAX];
    char token_file[OPTION_TEXT_MAX];
};

/* --tls-ca, --tls-cert, --tls-key and --token-file, for a struct security_options. */
extern const struct option_spec security_specs[];

/* The configuration that they describe; its texts are borrowed from `o`.  `insecure` comes from the
 * program. */
struct rpc_security security_options_read(const struct security_options *o, bool insecure);

#endif
