/*
 * kubernetes: the manifests of a job for Kubernetes, as text for `kubectl apply`: a JobSet, or with
 * "kubernetes:jobs" Indexed Jobs and the headless Service by which their pods find each other.
 *
 * Promises: pods run as a user without rights, on a root file system that they cannot write; each
 * pod of a group with `has_host` is alone on its node, as far as this job goes.  Pod i of a group
 * has PET_NODE_RANK=i.  The pods take certificates and a token from the secret NAME-tls, unless a
 * command has --insecure or this process SPARRING_INSECURE=true.  Needs: the image of a bundle.
 * Called by launch and compare.
 */
#ifndef SPARRING_EXPERIMENTS_CLUSTER_KUBERNETES_H
#define SPARRING_EXPERIMENTS_CLUSTER_KUBERNETES_H

#include "common/base/error.h"
#include "common/base/strbuf.h"
#include "common/base/text_list.h"
#include "common/option/option.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kubernetes_options {
    char job_name[OPTION_TEXT_MAX];
    char image[OPTION_TEXT_MAX];
    char resources[OPTION_TEXT_MAX]; /* "cpu=4,memory=8Gi,nvidia.com/gpu=1" */
    char claim[OPTION_TEXT_MAX];     /* a PersistentVolumeClaim, or "" */
};

extern const struct option_spec kubernetes_option_specs[];

/* STATUS_INVALID, with its name, when an option has another value than by default. */
enum status kubernetes_check_unused(const struct kubernetes_options *o, struct error *err);

/* The error where a job is to be run. */
#define KUBERNETES_DRY_RUN                                                                         \
    "--on kubernetes and --dry-run go together: manifests are printed here, and kubectl starts "   \
    "them"

/* Equal pods: an Indexed Job. */
struct kubernetes_pods {
    const char *name; /* "workers" */
    size_t count;
    uint16_t port;          /* that they serve; 0: none */
    bool has_health;        /* at this port by grpc.health.v1, in plaintext */
    bool has_host;          /* a node for each */
    bool is_awaited;        /* the job ends when all of these have ended; others run until then */
    bool is_restarted;      /* after a failure, in the same pod */
    struct text_list words; /* of their command */
};

#define KUBERNETES_PODS_MAX 2
struct kubernetes_job {
    const struct kubernetes_options *options;
    const char *on; /* "kubernetes" or "kubernetes:jobs" */
    struct kubernetes_pods pods[KUBERNETES_PODS_MAX];
    size_t length;
};

/* Append the manifests.  STATUS_INVALID: a name, an image or a resource that Kubernetes would
 * refuse. */
enum status kubernetes_add_manifests(const struct kubernetes_job *job, struct strbuf *text,
                                     struct error *err);
void kubernetes_release(struct kubernetes_job *job);

/* Where pod `index` of a group is reached: "NAME-workers-0-3.NAME". */
void kubernetes_add_host(const char *job_name, const char *pods, size_t index, struct strbuf *text);

#endif
