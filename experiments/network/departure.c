/*
 * departure: random numbers are those of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
 */
#include "experiments/network/departure.h"

/* Uniform in [0, 1). */
static double draw(uint64_t *random)
{
    uint64_t z = (*random += 0x9e3779b97f4a7c15ull);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

void departure_open(struct departure_path *p, const struct network_link *link, uint64_t seed,
                    size_t from, size_t to)
{
    *p = (struct departure_path){.link = *link,
                                 .random = (seed << 32) ^ ((uint64_t)from << 16) ^ (uint64_t)to};
}

bool departure_next(struct departure_path *p, int64_t arrival_ns, int64_t *ret_ns)
{
    int64_t departure_ns = arrival_ns + p->link.delay_ns;

    if (p->link.loss > 0 && draw(&p->random) < p->link.loss)
        return false;
    if (p->link.jitter_ns > 0)
        departure_ns += (int64_t)((2 * draw(&p->random) - 1) * (double)p->link.jitter_ns);
    if (departure_ns < p->last_ns)
        departure_ns = p->last_ns;
    p->last_ns = departure_ns;
    *ret_ns = departure_ns;
    return true;
}
