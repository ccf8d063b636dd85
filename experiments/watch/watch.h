/*
 * watch: `sparring watch`, a page of what the runs of a folder are doing, and `sparring status`,
 * the same for a terminal.
 */
#ifndef SPARRING_EXPERIMENTS_WATCH_WATCH_H
#define SPARRING_EXPERIMENTS_WATCH_WATCH_H

/* The exit code of the process. */
int watch_main(int argc, char **argv);
int status_main(int argc, char **argv);

#endif
