/*
 * html_check: checks that a page is well-formed, complete in one file, and free of scripts.
 */
#ifndef SPARRING_TESTS_EXPERIMENTS_REPORT_HTML_CHECK_H
#define SPARRING_TESTS_EXPERIMENTS_REPORT_HTML_CHECK_H

/* Fails the test unless: every element is closed in order, every attribute quoted, '&' only begins
 * an entity, '<' only a tag; identifiers are unique; there is no script, no event attribute, and no
 * src, href or url() but to an identifier of the page, or to a report of a cell beside it. */
void html_check(const char *text);

#endif
