/*
 * bench: the benchmarks of `sparring bench`.  Each owns its options and its --help, takes
 * argv from its own name on, and returns the program's exit code.
 */
#ifndef SPARRING_EXPERIMENTS_BENCH_BENCH_H
#define SPARRING_EXPERIMENTS_BENCH_BENCH_H

/* argv[0]: which collective, as all_reduce. */
int bench_collective_main(int argc, char **argv);
int bench_ps_main(int argc, char **argv);
int bench_matmul_main(int argc, char **argv);
int bench_optimizer_main(int argc, char **argv);
int bench_train_main(int argc, char **argv);

#endif
