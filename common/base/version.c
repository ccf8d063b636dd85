#include "common/base/version.h"

const char *version_git(void)
{
    return SPARRING_GIT;
}
