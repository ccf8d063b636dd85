/*
 * export: `sparring export` packs the folder of an experiment into one archive, and on another
 * machine checks it and makes its report again; or writes its runs for TensorBoard.  Promises: what
 * is checked has the files that were packed, bit for bit, and its records give the figures of its
 * reports.  Needs: subprocess (tar, sha256sum), option.  Called by main.c.
 */
#ifndef SPARRING_EXPERIMENTS_EXPORT_EXPORT_H
#define SPARRING_EXPERIMENTS_EXPORT_EXPORT_H

/* The subcommand; argv[0] is its name.  Returns the program's exit code. */
int export_main(int argc, char **argv);

#endif
