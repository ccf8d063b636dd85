/*
 * simulation_size: from the work of a simulation, which is estimated.
 */
#include "experiments/predict/simulation_size.h"

#include <math.h>

/* Rates of flows to compute, and as many more where no closed form is an alternative. */
#define WORK_MAX 2e6
#define PATIENCE 10

/* Of those that stand for more. */
#define RANKS_LEAST      16
#define COLOCATED_LEAST  8
#define COLOCATED_MOST   14
#define SERVERS_MOST     8
#define PARTITIONS_LEAST 8 /* of each server, or all */

/* Rates of flows: at each push and reply, of all connections. */
static double work_of(double ranks, double servers, double partitions)
{
    return 2 * SIMULATION_STEPS * ranks * partitions * 2 * ranks * servers;
}

/* How many ranks can be simulated with so much work. */
static double ranks_most(double servers, double partitions, double work)
{
    return sqrt(work / work_of(1, servers, partitions));
}

/* As many partitions of each server as so many ranks and servers allow. */
static double partitions_most(double ranks, double servers)
{
    return floor(PATIENCE * WORK_MAX / work_of(ranks, servers, servers));
}

/* So many that ranks per simulated one are almost the same, as servers beside them are. */
static unsigned colocated_ranks(double ranks)
{
    unsigned best = COLOCATED_LEAST;

    for (unsigned n = COLOCATED_LEAST; n <= COLOCATED_MOST; n++)
        if (ranks / n * floor(ranks / best) < ranks / best * floor(ranks / n))
            best = n;
    return best;
}

/* Fewer of everything.  A round with backup workers must be able to leave out a simulated rank; of
 * colocated servers each rank has one, and none is idle. */
static bool make_groups(const struct cost_job *job, double bytes, struct simulation_size *ret)
{
    const double partitions = ceil(bytes / job->partition_bytes);
    const double busy = fmin(job->servers, partitions); /* servers that have any */
    const double least =
        job->consistency.backup > 0 ? ceil((double)job->ranks / job->consistency.backup) : 0;
    double each = ceil(partitions / busy), most;

    if (job->ranks < COLOCATED_LEAST ||
        (job->is_colocated && (job->servers != job->ranks || busy < job->servers)))
        return false;
    ret->ranks = job->is_colocated ? colocated_ranks(job->ranks)
                                   : (unsigned)fmin(job->ranks, fmax(RANKS_LEAST, least));
    ret->servers = job->is_colocated ? ret->ranks : (unsigned)fmin(busy, SERVERS_MOST);
    most = partitions_most(ret->ranks, ret->servers);
    while (!job->is_colocated && ret->servers > 1 && most < fmin(each, PARTITIONS_LEAST)) {
        ret->servers /= 2;
        most = partitions_most(ret->ranks, ret->servers);
    }
    if (most < fmin(each, PARTITIONS_LEAST) || ret->ranks < least)
        return false;
    each = fmin(each, most);
    ret->server_size = busy / ret->servers;
    ret->partition_bytes = bytes / (ret->servers * each);
    ret->element_bytes = sizeof(float) * fmax(1, ret->partition_bytes / PARTITION_BYTES_MAX);
    return true;
}

bool simulation_size_of(const struct cost_job *job, double bytes, bool is_required,
                        struct simulation_size *ret)
{
    const double partitions = ceil(bytes / job->partition_bytes);
    const double work = (is_required ? PATIENCE : 1) * WORK_MAX;
    const double most = ranks_most(job->servers, partitions, WORK_MAX);

    *ret = (struct simulation_size){.ranks = job->ranks,
                                    .servers = job->servers,
                                    .server_size = 1,
                                    .element_bytes = sizeof(float),
                                    .partition_bytes = job->partition_bytes};
    if (job->ranks <= ranks_most(job->servers, partitions, work))
        return true;
    if (most < RANKS_LEAST || job->is_colocated || job->consistency.backup > 0)
        return is_required && make_groups(job, bytes, ret);
    ret->ranks = (unsigned)most;
    return true;
}

enum status simulation_make_map(const struct simulation_size *size, double bytes,
                                const uint32_t *weights, struct shard_map *ret, struct error *err)
{
    const double each = ceil(size->partition_bytes / size->element_bytes); /* elements */

    return shard_map_make_weighted((size_t)ceil(bytes / size->element_bytes),
                                   (size_t)each * sizeof(float), size->servers, weights, ret, err);
}
