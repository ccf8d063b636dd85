/*
 * certificate: runs the openssl command.  Files are in the folder of the test; keys are on P-256
 * and certificates are valid for two days.
 */
#include "tests/support/certificate.h"

#include "tests/support/process.h"
#include "tests/support/support.h"

#include <stdio.h>

bool certificate_can_make(void)
{
    struct process probe;

    process_start(&probe, NULL, ARGS("openssl", "version"));
    if (process_wait(&probe, 60000) == 0)
        return true;
    (void)printf("skipped: TLS tests need the openssl command\n");
    return false;
}

const char *certificate_file(const char *name, const char *suffix)
{
    char text[64];

    (void)snprintf(text, sizeof(text), "%s.%s", name, suffix);
    return support_path(text);
}

void certificate_make_authority(const char *name)
{
    (void)process_run(0, 60000, NULL,
                      ARGS("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                           "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test",
                           "-keyout", certificate_file(name, "key"), "-out",
                           certificate_file(name, "pem")));
}

void certificate_make(const char *name, const char *authority, const char *alt_name)
{
    (void)process_run(0, 60000, NULL,
                      ARGS("openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                           "-nodes", "-subj", "/CN=test", "-addext", alt_name, "-keyout",
                           certificate_file(name, "key"), "-out", certificate_file(name, "csr")));
    (void)process_run(
        0, 60000, NULL,
        ARGS("openssl", "x509", "-req", "-days", "2", "-copy_extensions", "copy", "-CAcreateserial",
             "-in", certificate_file(name, "csr"), "-CA", certificate_file(authority, "pem"),
             "-CAkey", certificate_file(authority, "key"), "-out", certificate_file(name, "pem")));
}
