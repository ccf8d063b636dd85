/*
 * doctor: `sparring doctor` says what this host has of what Sparring uses, what is missing and how
 * to get it, and what makes measurements on it worse.  Promises: it changes nothing, and tries what
 * can be tried (an emulated network, a port) instead of guessing.  Needs: network, subprocess,
 * option.  Called by main.c.
 */
#ifndef SPARRING_EXPERIMENTS_DOCTOR_DOCTOR_H
#define SPARRING_EXPERIMENTS_DOCTOR_DOCTOR_H

/* The subcommand; argv[0] is its name.  Returns the program's exit code: 1 when no job can run. */
int doctor_main(int argc, char **argv);

#endif
