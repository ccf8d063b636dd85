/*
 * version: what was built.  SPARRING_VERSION is the release; the commit is known to one file only,
 * so that a new commit recompiles one file.
 */
#ifndef SPARRING_COMMON_BASE_VERSION_H
#define SPARRING_COMMON_BASE_VERSION_H

/* `git describe --always --dirty` at configure time, "" outside a checkout. */
const char *version_git(void);

#endif
