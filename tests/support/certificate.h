/*
 * certificate: keys and certificates for TLS tests, made by the openssl command in the folder of
 * the test.  Call it inside a Check test; a failure of openssl fails the test.
 */
#ifndef SPARRING_TESTS_SUPPORT_CERTIFICATE_H
#define SPARRING_TESTS_SUPPORT_CERTIFICATE_H

#include <stdbool.h>

/* False, after a line that reports a skipped test, if there is no openssl command. */
bool certificate_can_make(void);

/* "<folder>/<name>.<suffix>"; suffix is "pem" or "key". */
const char *certificate_file(const char *name, const char *suffix);

/* Make a self-signed authority; make a certificate that it signs, with a subjectAltName such as
 * "subjectAltName=IP:127.0.0.1". */
void certificate_make_authority(const char *name);
void certificate_make(const char *name, const char *authority, const char *alt_name);

#endif
