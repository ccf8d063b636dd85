/*
 * `sparring launch` as a program of its own, for its tests: what the front's main does with it.
 */
#include "experiments/launch/launch.h"

int main(int argc, char **argv)
{
    return launch_main(argc, argv);
}
