/*
 * version: the release (SPARRING_VERSION) and the commit of this build.
 */
#ifndef SPARRING_COMMON_BASE_VERSION_H
#define SPARRING_COMMON_BASE_VERSION_H

/* `git describe --always --dirty` at build time, "" outside a checkout. */
const char *version_git(void);

#endif
