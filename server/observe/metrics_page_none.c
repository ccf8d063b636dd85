/*
 * The metrics page of a build without libmicrohttpd: opening it fails with STATUS_UNSUPPORTED.
 * CMakeLists.txt chooses this source or metrics_page.c.
 */
#include "server/observe/metrics_page.h"

enum status metrics_page_open(const struct metrics_page_config *config,
                              struct metrics_page **ret_page, struct error *err)
{
    (void)ret_page;
    return error_set(err, STATUS_UNSUPPORTED,
                     "%s: this build has no metrics page, libmicrohttpd was not there",
                     config->origin);
}

uint16_t metrics_page_port(const struct metrics_page *page)
{
    (void)page;
    return 0;
}

void metrics_page_close(struct metrics_page *page)
{
    (void)page;
}
