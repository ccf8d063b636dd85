/*
 * command: runs a subcommand in the test's own process.  Call it inside a Check test or fixture.
 */
#ifndef SPARRING_TESTS_SUPPORT_COMMAND_H
#define SPARRING_TESTS_SUPPORT_COMMAND_H

/* The exit code of `command` with these words, NULL-terminated.  *output and *errors, which are
 * freed before, get what it printed; owned by the caller.  Afterwards the test's own standard
 * output and error are files. */
int command_run(int (*command)(int argc, char **argv), char **argv, char **output, char **errors);

#endif
