/* The main of test_base. */
#include "tests/common/base/test_base.h"

int main(void)
{
    Suite *suite = suite_create("base");

    suite_add_tcase(suite, text_cases());
    suite_add_tcase(suite, file_cases());
    suite_add_tcase(suite, stop_cases());
    return support_run(suite);
}
