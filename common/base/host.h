/*
 * host: a description of this machine, for manifests and benchmark files.
 */
#ifndef SPARRING_COMMON_BASE_HOST_H
#define SPARRING_COMMON_BASE_HOST_H

#include "common/base/strbuf.h"

#include <stdint.h>

struct host_info {
    char name[256];
    char cpu[128];          /* "model name" of /proc/cpuinfo, or the machine type */
    char kernel[128];       /* "Linux 6.1.0" */
    unsigned cores;         /* host_job_cores */
    char processors[1024];  /* that this process may use: "0-3,8" */
    char bind[16];          /* --bind of `sparring launch`; "": not bound by it */
    char network[256];      /* emulated by `sparring launch`; "": the host's own */
    double processor_quota; /* of its control groups; INFINITY: none */
    uint64_t memory_bytes;
    double memory_limit;         /* of its control groups, bytes; INFINITY: none */
    double load;                 /* average over the last minute; NaN: not known */
    char governor[32];           /* of processor 0; "": unknown */
    char congestion_control[32]; /* TCP's default; "": unknown */
};

void host_info_read(struct host_info *ret);

/* Processors that this process may use: those of its affinity mask, at most the quota of its
 * control groups rounded up; at least 1. */
unsigned host_cores(void);

/* NVIDIA GPUs: the entries of CUDA_VISIBLE_DEVICES before the first that names none, as CUDA counts
 * them, where it is set, else the number of /dev/nvidia<n>. */
unsigned host_gpus(void);

/* Raise the soft limit of open files towards the hard one: a rank has several for each other rank
 * of its host, and gRPC core accepts no more connections once accept ran out of them.  Processes
 * that are started later inherit it. */
void host_raise_file_limit(void);

/* Processors that all processes of the job on this host may use: SPARRING_HOST_CORES, which
 * `sparring launch` sets where it gives each process a part of them (--bind), else host_cores(). */
unsigned host_job_cores(void);

/* How many threads one of `parts` equal users of the job's processors starts: its part of
 * host_job_cores(), at most host_cores(), at least 1. */
unsigned host_cores_part(unsigned parts);

/* {"name":..,"cpu":..,"cores":..,"processors":..,"memory_bytes":..,"kernel":..,"compiler":..,
 * "load":..,"environment":..}, and where they are known or set "bind", "network",
 * "processor_quota", "memory_limit", "governor", "congestion_control". */
void host_info_json(const struct host_info *host, struct strbuf *out);

/* Append the environment variables that configure libraries (threads, NCCL, gRPC), sorted:
 * "GRPC_VERBOSITY=ERROR OMP_NUM_THREADS=1". */
void host_add_environment(struct strbuf *out);

/* Resident memory of this process now; 0 when /proc cannot be read. */
uint64_t host_rss_bytes(void);

/* Largest resident memory and processor time (user and system) of this process so far. */
uint64_t host_peak_rss_bytes(void);
double host_cpu_seconds(void);

/* For how long so far some thread of this machine has waited for a processor (the kernel's pressure
 * stall information); -1: not known. */
int64_t host_processor_wait_ns(void);

#endif
