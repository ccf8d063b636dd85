/*
 * kubernetes: writes YAML line by line.  Every text from outside is a JSON string, which is a YAML
 * string too; "$" is doubled, since Kubernetes expands "$(NAME)" and makes "$" of "$$".
 *
 * The names of the pods of a JobSet are those of Indexed Jobs called NAME-GROUP-0, so that both
 * forms have the same hosts.
 *
 * Fields of JobSet: jobset.x-k8s.io/v1alpha2 of JobSet 0.8.  https://jobset.sigs.k8s.io/docs
 */
#include "experiments/cluster/kubernetes.h"

#include "common/base/parse.h"

#include "experiments/cluster/engine.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_LENGTH   63 /* of a pod's host name, RFC 1123 */
#define POD_SUFFIX_LENGTH 6  /* "-abcde", for which a JobSet has to leave room */
#define USER              65532
#define SECRET_FOLDER     "/run/secrets/sparring"
#define WORK_FOLDER       "/work"
#define KUBERNETES_JOBS   "kubernetes:jobs"
#define LABEL             "app.kubernetes.io/"

#define AT(field) offsetof(struct kubernetes_options, field)

const struct option_spec kubernetes_option_specs[] = {
    {.help = "Kubernetes (--on kubernetes):"},
    {.name = "job-name",
     .kind = OPTION_TEXT,
     .offset = AT(job_name),
     .default_text = "sparring",
     .metavar = "NAME",
     .help = "Of the job; its pods' names, of at most 63 characters, begin with it."},
    {.name = "image",
     .kind = OPTION_TEXT,
     .offset = AT(image),
     .default_text = "sparring:" SPARRING_VERSION,
     .metavar = "IMAGE",
     .help = "The image of the pods, made from a bundle by its Containerfile."},
    {.name = "pod-resources",
     .kind = OPTION_TEXT,
     .offset = AT(resources),
     .default_text = "cpu=1,memory=1Gi",
     .metavar = "NAME=N,...",
     .help = "What each pod asks for, and is limited to; a GPU is nvidia.com/gpu=1."},
    {.name = "pod-claim",
     .kind = OPTION_TEXT,
     .offset = AT(claim),
     .metavar = "NAME",
     .help = "A persistent volume claim that all pods share: their working folder " WORK_FOLDER
             ".  By default that is empty and goes with the pod."},
    {0},
};

enum status kubernetes_check_unused(const struct kubernetes_options *o, struct error *err)
{
    for (const struct option_spec *spec = kubernetes_option_specs; spec->help; spec++) {
        const char *unset = spec->default_text ? spec->default_text : "";

        if (spec->name && strcmp((const char *)o + spec->offset, unset) != 0)
            return error_set(err, STATUS_INVALID, "--%s goes with --on kubernetes", spec->name);
    }
    return STATUS_OK;
}

static bool is_plain_jobs(const struct kubernetes_job *job)
{
    return strcmp(job->on, KUBERNETES_JOBS) == 0;
}

struct writer {
    const struct kubernetes_job *job;
    struct strbuf *text;
    size_t depth;
    bool is_insecure; /* plaintext, no secret */
};

__attribute__((format(printf, 2, 3))) static void add_line(struct writer *w, const char *format,
                                                           ...)
{
    va_list args;

    va_start(args, format);
    strbuf_addf(w->text, "%*s", (int)(2 * w->depth), "");
    strbuf_vaddf(w->text, format, args);
    strbuf_add(w->text, "\n");
    va_end(args);
}

/* A value that Kubernetes leaves as it is. */
static void add_string(struct strbuf *text, const char *value)
{
    struct strbuf plain = STRBUF_INIT;

    for (; *value; value++) {
        if (*value == '$')
            strbuf_add(&plain, "$");
        strbuf_add_bytes(&plain, value, 1);
    }
    strbuf_add_json(text, plain.text);
    text->failed = text->failed || !strbuf_ok(&plain);
    strbuf_release(&plain);
}

void kubernetes_add_host(const char *job_name, const char *pods, size_t index, struct strbuf *text)
{
    strbuf_addf(text, "%s-%s-0-%zu.%s", job_name, pods, index, job_name);
}

/* ---- a pod */

static void add_value(struct writer *w, const char *name, const char *value)
{
    add_line(w, "- name: %s", name);
    strbuf_addf(w->text, "%*svalue: ", (int)(2 * w->depth + 2), "");
    add_string(w->text, value);
    strbuf_add(w->text, "\n");
}

static void add_environment(struct writer *w)
{
    static const char *const secrets[][2] = {{"SPARRING_TLS_CA", SECRET_FOLDER "/ca.pem"},
                                             {"SPARRING_TLS_CERT", SECRET_FOLDER "/node.pem"},
                                             {"SPARRING_TLS_KEY", SECRET_FOLDER "/node.key"},
                                             {"SPARRING_TOKEN_FILE", SECRET_FOLDER "/token"}};

    add_line(w, "env:");
    add_line(w, "- name: PET_NODE_RANK");
    add_line(w, "  valueFrom:");
    add_line(w, "    fieldRef:");
    add_line(w,
             "      fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']");
    add_value(w, "SPARRING_LOG_FORMAT", "json");
    if (w->is_insecure)
        add_value(w, "SPARRING_INSECURE", "true");
    for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]) && !w->is_insecure; i++)
        add_value(w, secrets[i][0], secrets[i][1]);
}

/* "cpu=4,memory=8Gi" as a mapping on one line. */
static void add_resources(struct writer *w)
{
    struct strbuf map = STRBUF_INIT;

    for (const char *entry = w->job->options->resources; *entry;) {
        const size_t name = strcspn(entry, "="), length = strcspn(entry, ",");

        strbuf_addf(&map, "%s\"%.*s\": \"%.*s\"", map.length > 0 ? ", " : "", (int)name, entry,
                    (int)(length - name - 1), entry + name + 1);
        entry += length + (entry[length] == ',');
    }
    add_line(w, "resources:");
    add_line(w, "  requests: {%s}", map.text);
    add_line(w, "  limits: {%s}", map.text);
    w->text->failed = w->text->failed || !strbuf_ok(&map);
    strbuf_release(&map);
}

/* The kubelet speaks gRPC in plaintext only. */
static void add_probes(struct writer *w, const struct kubernetes_pods *pods)
{
    static const char *const names[] = {"startupProbe", "readinessProbe", "livenessProbe"};

    if (pods->port == 0)
        return;
    add_line(w, "ports:");
    add_line(w, "- containerPort: %u", pods->port);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        add_line(w, "%s:", names[i]);
        add_line(w, "  %s: {port: %u}", pods->has_health && w->is_insecure ? "grpc" : "tcpSocket",
                 pods->port);
        add_line(w, "  periodSeconds: %d", i == 0 ? 1 : 10);
        add_line(w, "  failureThreshold: %d", i == 0 ? 60 : 3);
    }
}

static void add_container(struct writer *w, const struct kubernetes_pods *pods)
{
    add_line(w, "containers:");
    add_line(w, "- name: sparring");
    w->depth++;
    add_line(w, "image: \"%s\"", w->job->options->image);
    add_line(w, "workingDir: " WORK_FOLDER);
    add_line(w, "command:");
    for (size_t i = 0; i < pods->words.length; i++) {
        strbuf_addf(w->text, "%*s- ", (int)(2 * w->depth), "");
        add_string(w->text, pods->words.texts[i]);
        strbuf_add(w->text, "\n");
    }
    add_environment(w);
    add_probes(w, pods);
    add_resources(w);
    add_line(w, "securityContext:");
    add_line(w, "  allowPrivilegeEscalation: false");
    add_line(w, "  readOnlyRootFilesystem: true");
    add_line(w, "  capabilities: {drop: [ALL]}");
    add_line(w, "volumeMounts:");
    add_line(w, "- {name: work, mountPath: " WORK_FOLDER "}");
    add_line(w, "- {name: tmp, mountPath: /tmp}");
    add_line(w, "- {name: shm, mountPath: /dev/shm}");
    if (!w->is_insecure)
        add_line(w, "- {name: tls, mountPath: " SECRET_FOLDER ", readOnly: true}");
    w->depth--;
}

static void add_volumes(struct writer *w)
{
    const struct kubernetes_options *o = w->job->options;

    add_line(w, "volumes:");
    add_line(w, "- name: work");
    if (o->claim[0] != '\0')
        add_line(w, "  persistentVolumeClaim: {claimName: \"%s\"}", o->claim);
    else
        add_line(w, "  emptyDir: {}");
    add_line(w, "- {name: tmp, emptyDir: {}}");
    add_line(w, "- {name: shm, emptyDir: {medium: Memory}}");
    if (!w->is_insecure) {
        add_line(w, "- name: tls");
        add_line(w, "  secret: {secretName: \"%s-tls\", defaultMode: 0440}", o->job_name);
    }
}

/* No two pods with a host of their own on one node. */
static void add_affinity(struct writer *w)
{
    add_line(w, "affinity:");
    add_line(w, "  podAntiAffinity:");
    add_line(w, "    requiredDuringSchedulingIgnoredDuringExecution:");
    add_line(w, "    - topologyKey: kubernetes.io/hostname");
    add_line(w, "      labelSelector:");
    add_line(w, "        matchLabels: {" LABEL "instance: \"%s\", " LABEL "part-of: hosts}",
             w->job->options->job_name);
}

static void add_pod(struct writer *w, const struct kubernetes_pods *pods, bool has_subdomain)
{
    const char *name = w->job->options->job_name;

    add_line(w, "template:");
    w->depth++;
    add_line(w, "metadata:");
    add_line(w, "  labels:");
    add_line(w, "    " LABEL "instance: \"%s\"", name);
    add_line(w, "    " LABEL "component: %s", pods->name);
    if (pods->has_host)
        add_line(w, "    " LABEL "part-of: hosts");
    add_line(w, "spec:");
    w->depth++;
    if (has_subdomain)
        add_line(w, "subdomain: \"%s\"", name);
    add_line(w, "restartPolicy: %s", pods->is_restarted ? "OnFailure" : "Never");
    add_line(w, "terminationGracePeriodSeconds: 30");
    add_line(w, "automountServiceAccountToken: false");
    add_line(w, "enableServiceLinks: false");
    add_line(w, "securityContext:");
    add_line(w, "  runAsNonRoot: true");
    add_line(w, "  runAsUser: %d", USER);
    add_line(w, "  runAsGroup: %d", USER);
    add_line(w, "  fsGroup: %d", USER);
    add_line(w, "  seccompProfile: {type: RuntimeDefault}");
    if (pods->has_host)
        add_affinity(w);
    add_container(w, pods);
    add_volumes(w);
    w->depth -= 2;
}

static void add_job_spec(struct writer *w, const struct kubernetes_pods *pods, bool has_subdomain)
{
    add_line(w, "spec:");
    w->depth++;
    add_line(w, "completionMode: Indexed");
    add_line(w, "completions: %zu", pods->count);
    add_line(w, "parallelism: %zu", pods->count);
    add_line(w, "backoffLimit: %d", pods->is_restarted ? 6 : 0);
    add_pod(w, pods, has_subdomain);
    w->depth--;
}

/* ---- the whole */

static void add_job_set(struct writer *w)
{
    const struct kubernetes_job *job = w->job;
    const char *name = job->options->job_name;

    add_line(w, "apiVersion: jobset.x-k8s.io/v1alpha2");
    add_line(w, "kind: JobSet");
    add_line(w, "metadata: {name: \"%s\"}", name);
    add_line(w, "spec:");
    w->depth++;
    add_line(w,
             "network: {enableDNSHostnames: true, subdomain: \"%s\", "
             "publishNotReadyAddresses: true}",
             name);
    add_line(w, "successPolicy:");
    add_line(w, "  operator: All");
    add_line(w, "  targetReplicatedJobs:");
    for (size_t i = 0; i < job->length; i++)
        if (job->pods[i].is_awaited)
            add_line(w, "  - %s", job->pods[i].name);
    add_line(w, "failurePolicy: {maxRestarts: 0}");
    add_line(w, "replicatedJobs:");
    for (size_t i = 0; i < job->length; i++) {
        add_line(w, "- name: %s", job->pods[i].name);
        w->depth++;
        add_line(w, "replicas: 1");
        add_line(w, "template:");
        w->depth++;
        add_job_spec(w, &job->pods[i], false);
        w->depth -= 2;
    }
    w->depth--;
}

static void add_jobs(struct writer *w)
{
    const char *name = w->job->options->job_name;

    add_line(w, "apiVersion: v1");
    add_line(w, "kind: Service");
    add_line(w, "metadata: {name: \"%s\"}", name);
    add_line(w, "spec:");
    add_line(w, "  clusterIP: None");
    add_line(w, "  publishNotReadyAddresses: true");
    add_line(w, "  selector: {" LABEL "instance: \"%s\"}", name);
    for (size_t i = 0; i < w->job->length; i++) {
        add_line(w, "---");
        add_line(w, "apiVersion: batch/v1");
        add_line(w, "kind: Job");
        add_line(w, "metadata: {name: \"%s-%s-0\"}", name, w->job->pods[i].name);
        add_job_spec(w, &w->job->pods[i], true);
    }
}

static void add_comment(struct writer *w)
{
    const struct kubernetes_job *job = w->job;
    const char *name = job->options->job_name;
    const struct kubernetes_pods *last = &job->pods[job->length - 1];

    add_line(w,
             "# For `kubectl apply -f FILE`; never run on a cluster by those who wrote Sparring.");
    if (!is_plain_jobs(job))
        add_line(w, "# Needs JobSet: https://jobset.sigs.k8s.io");
    else
        add_line(
            w,
            "# It is done when job/%s-%s-0 is complete; `kubectl delete -f FILE` ends the others.",
            name, last->name);
    if (w->is_insecure)
        return;
    add_line(w, "# Certificates for all pods, and their secret:");
    add_line(w, "#   make-certificates certs");
    strbuf_add(w->text, "#   make-certificates certs node --server");
    for (size_t g = 0; g < job->length; g++)
        for (size_t i = 0; i < job->pods[g].count; i++) {
            strbuf_add(w->text, " --host ");
            kubernetes_add_host(name, job->pods[g].name, i, w->text);
        }
    strbuf_addf(w->text, "\n#   kubectl create secret generic %s-tls", name);
    for (size_t i = 0; i < 4; i++)
        strbuf_addf(w->text, " --from-file=certs/%s",
                    (const char *const[]){"ca.pem", "node.pem", "node.key", "token"}[i]);
    strbuf_add(w->text, "\n");
}

/* ---- checks */

/* Of a name: "a-1", RFC 1123. */
static bool is_label(const char *text)
{
    const size_t length = strlen(text);

    return length > 0 && length <= NAME_MAX_LENGTH && text[0] != '-' && text[length - 1] != '-' &&
           text[strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0';
}

static enum status check_resources(const char *text, struct error *err)
{
    static const char characters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                     "0123456789./-_";

    while (*text) {
        const size_t name = strspn(text, characters);
        const size_t number = text[name] == '=' ? strspn(text + name + 1, characters) : 0;
        const size_t length = name + 1 + number;

        if (name == 0 || number == 0 || (text[length] != ',' && text[length] != '\0'))
            return error_set(err, STATUS_INVALID,
                             "--pod-resources: '%s' is not NAME=N, such as cpu=4 or memory=8Gi",
                             text);
        text += length + (text[length] == ',');
    }
    return STATUS_OK;
}

static enum status check_names(const struct kubernetes_job *job, struct error *err)
{
    const struct kubernetes_options *o = job->options;
    const int longest = NAME_MAX_LENGTH - (is_plain_jobs(job) ? 0 : POD_SUFFIX_LENGTH);

    if (!is_plain_jobs(job) && strcmp(job->on, "kubernetes") != 0)
        return error_set(err, STATUS_INVALID,
                         "--on: '%s' is neither kubernetes nor " KUBERNETES_JOBS, job->on);
    if (!is_label(o->job_name) || isdigit((unsigned char)o->job_name[0]))
        return error_set(err, STATUS_INVALID,
                         "--job-name: '%s' is not a name of letters a-z, digits and '-' that "
                         "begins with a letter",
                         o->job_name);
    for (size_t i = 0; i < job->length; i++) {
        const int length = snprintf(NULL, 0, "%s-%s-0-%zu", o->job_name, job->pods[i].name,
                                    job->pods[i].count - 1);

        if (length > longest)
            return error_set(err, STATUS_INVALID,
                             "--job-name: '%s' makes names of %d characters, allowed are %d%s",
                             o->job_name, length, longest,
                             is_plain_jobs(job) ? "" : ", since a JobSet adds 6");
    }
    if (o->image[0] == '\0' || strpbrk(o->image, " \"\\\n"))
        return error_set(err, STATUS_INVALID, "--image: '%s' is not the name of an image",
                         o->image);
    if (o->claim[0] != '\0' && !is_label(o->claim))
        return error_set(err, STATUS_INVALID, "--pod-claim: '%s' is not a name", o->claim);
    return check_resources(o->resources, err);
}

static bool is_insecure(const struct kubernetes_job *job)
{
    static const char option[] = "--insecure";
    const char *variable = getenv("SPARRING_INSECURE");
    bool found = false, value = false;

    for (size_t i = 0; i < job->length && !found; i++)
        for (size_t k = 0; k < job->pods[i].words.length && !found; k++) {
            const char *word = job->pods[i].words.texts[k];
            const size_t length = sizeof(option) - 1;

            found = strncmp(word, option, length) == 0 &&
                    (word[length] == '\0' ||
                     (word[length] == '=' && parse_bool(word + length + 1, &value) && value));
        }
    return found || (variable && parse_bool(variable, &value) && value);
}

enum status kubernetes_add_manifests(const struct kubernetes_job *job, struct strbuf *text,
                                     struct error *err)
{
    struct writer w = {.job = job, .text = text, .is_insecure = is_insecure(job)};
    enum status status = check_names(job, err);

    for (size_t i = 0; i < job->length && status == STATUS_OK; i++)
        if (job->pods[i].words.failed)
            status = error_set(err, STATUS_NO_MEMORY, "no memory for a manifest");
    if (status != STATUS_OK)
        return status;
    add_comment(&w);
    if (is_plain_jobs(job))
        add_jobs(&w);
    else
        add_job_set(&w);
    return strbuf_ok(text) ? STATUS_OK
                           : error_set(err, STATUS_NO_MEMORY, "no memory for a manifest");
}

void kubernetes_release(struct kubernetes_job *job)
{
    for (size_t i = 0; i < job->length; i++)
        text_list_release(&job->pods[i].words);
}

/* ---- the engine: nothing runs from here */

static bool is_allocated(void)
{
    return false;
}

static enum status add_allocation(const char *on, size_t hosts, char *const *argv,
                                  struct text_list *words, struct error *err)
{
    (void)on;
    (void)hosts;
    (void)argv;
    (void)words;
    return error_set(err, STATUS_UNSUPPORTED, KUBERNETES_DRY_RUN);
}

/* Pods with standby daemons, and one that runs the command on them; started again it goes on. */
static enum status add_script(const struct engine_script *script, struct strbuf *text,
                              struct error *err)
{
    struct kubernetes_job job = {
        .options = script->kubernetes,
        .on = script->on,
        .pods = {{.name = "hosts",
                  .count = script->hosts,
                  .port = ENGINE_STANDBY_PORT,
                  .has_host = true},
                 {.name = "compare", .count = 1, .is_awaited = true, .is_restarted = true}},
        .length = 2};
    struct strbuf on = STRBUF_INIT;
    enum status status;

    strbuf_add(&on, "--on=standby:");
    for (size_t i = 0; i < script->hosts; i++) {
        strbuf_add(&on, i > 0 ? "," : "");
        kubernetes_add_host(script->kubernetes->job_name, job.pods[0].name, i, &on);
    }
    text_list_addf(&job.pods[0].words, "sparring");
    text_list_addf(&job.pods[0].words, "standby");
    text_list_addf(&job.pods[0].words, "serve");
    text_list_addf(&job.pods[0].words, "--listen=0.0.0.0:%d", ENGINE_STANDBY_PORT);
    text_list_addf(&job.pods[0].words, "--allow-dir=.");
    for (const char *const *word = script->program; *word; word++)
        text_list_addf(&job.pods[1].words, "%s", *word);
    text_list_addf(&job.pods[1].words, "%s", on.text);
    status = strbuf_ok(&on) ? kubernetes_add_manifests(&job, text, err)
                            : error_set(err, STATUS_NO_MEMORY, "no memory for a manifest");
    strbuf_release(&on);
    kubernetes_release(&job);
    return status;
}

const struct engine engine_kubernetes = {.name = "kubernetes",
                                         .is_allocated = is_allocated,
                                         .add_allocation = add_allocation,
                                         .add_script = add_script,
                                         .writes_manifests = true};
