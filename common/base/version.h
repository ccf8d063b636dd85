/*
 * version: the release (SPARRING_VERSION) and the commit of this build.  Only version.c is compiled
 * with the commit, so that a new commit recompiles one file.
 */
#ifndef SPARRING_COMMON_BASE_VERSION_H
#define SPARRING_COMMON_BASE_VERSION_H

/* `git describe --always --dirty` at configure time, "" outside a checkout. */
const char *version_git(void);

#endif
