/*
 * page_files: watch.html and watch.js (ASCII), which CMakeLists.txt makes arrays of.
 */
#ifndef SPARRING_EXPERIMENTS_WATCH_PAGE_FILES_H
#define SPARRING_EXPERIMENTS_WATCH_PAGE_FILES_H

extern const char page_watch_html[], page_watch_js[]; /* NUL-terminated */

#endif
