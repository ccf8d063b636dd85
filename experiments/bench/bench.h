/*
 * bench: the benchmarks of `sparring bench`.  Each owns its options and its --help, takes argv from
 * its own name on, and returns the program's exit code.  Promises: the measured code is the
 * product's own, and alternatives take turns with it in the same run.  Needs: compute, optimizer,
 * sync, collective, store, tensor, option, subprocess.  Called by main.c.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_H

/* argv[0]: the collective, such as all_reduce. */
int bench_collective_main(int argc, char **argv);
int bench_ps_main(int argc, char **argv);
int bench_matmul_main(int argc, char **argv);
int bench_optimizer_main(int argc, char **argv);
int bench_train_main(int argc, char **argv);

#endif
