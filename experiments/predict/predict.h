/*
 * predict: `sparring predict` says what a step of each mode of an experiment takes, from a model of
 * costs and a few short runs, and holds it against a comparison that ran.
 * Promises: nothing of the comparison goes into the predictions.  Needs: compare's experiments,
 * report's runs, network's links.  Called by main.c.
 */
#ifndef SPARRING_EXPERIMENTS_PREDICT_PREDICT_H
#define SPARRING_EXPERIMENTS_PREDICT_PREDICT_H

/* argv[0] is "predict".  Returns the exit code. */
int predict_main(int argc, char **argv);

#endif
