/*
 * `sparring launch` as a separate program, for its tests.
 */
#include "experiments/launch/launch.h"

int main(int argc, char **argv)
{
    return launch_main(argc, argv);
}
