/*
 * net: `sparring net up` holds an emulated network in the foreground, for work by hand.
 */
#ifndef SPARRING_EXPERIMENTS_NETWORK_NET_H
#define SPARRING_EXPERIMENTS_NETWORK_NET_H

/* argv[0] is "up".  Blocks until a stop signal; returns the exit code. */
int net_up_main(int argc, char **argv);

#endif
