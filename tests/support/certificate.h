/*
 * certificate: throwaway keys and certificates in the test's folder, made by the openssl command.
 */
#ifndef SPARRING_TESTS_SUPPORT_CERTIFICATE_H
#define SPARRING_TESTS_SUPPORT_CERTIFICATE_H

#include <stdbool.h>

/* False, with a line that says so, when there is no openssl command. */
bool certificate_can_make(void);

/* "<folder>/<name>.<suffix>"; suffix is "pem" or "key". */
const char *certificate_file(const char *name, const char *suffix);

/* A self-signed authority, and a certificate that it signed for "subjectAltName=IP:127.0.0.1" or
 * the like. */
void certificate_make_authority(const char *name);
void certificate_make(const char *name, const char *authority, const char *alt_name);

#endif
