/*
 * The only file that is compiled with the commit's description, so a new commit recompiles one
 * file.
 */
#include "common/base/version.h"

const char *version_git(void)
{
    return SPARRING_GIT;
}
