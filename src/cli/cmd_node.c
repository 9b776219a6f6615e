/* karat node: the daemon of a memory node.
 *
 * The main thread takes clients and watches for signals; each client is served by a thread of its
 * own until it leaves, is lost, or the node stops. The first SIGINT, SIGTERM or SIGHUP stops the
 * node: nobody new is taken, services end, and when they have not within STOP_MS the process ends
 * without them. A second signal ends it at once. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/log.h"
#include "cli/address.h"
#include "cli/commands.h"
#include "cli/engine_options.h"
#include "method/outside.h"
#include "node/node.h"
#include "wire/payload.h"
#include "wire/ucx.h"

enum {
    CLIENTS_MAX = 64,
    BEAT_MS = 500,
    DEAD_MS = 2000,
    HANDSHAKE_MS = 5000,
    TURN_MS = 200, /* between looks at signals and ended services */
    STOP_MS = 5000,
};
#define NS_PER_MS ((uint64_t)1000000)

typedef struct {
    const char *listen, *key_file, *save_folder;
    uint32_t devices, threads_per_device, sessions_max, spin_us;
    uint64_t memory, message_max;
    kr_option_strings methods;
    int transport;
    bool bind, json;
} node_options;

static const kr_option table[] = {
    {.name = "listen",
     .letter = 'l',
     .type = KR_OPT_STRING,
     .at = offsetof(node_options, listen),
     .value = "HOST:PORT",
     .help = "address to listen at, and no other; port 0 lets the system choose"},
    KR_OPTION_KEY_FILE(offsetof(node_options, key_file),
                       "pre-shared key that clients must hold; needed beyond loopback"),
    KR_OPTION_TRANSPORT(offsetof(node_options, transport),
                        "auto takes shared memory on one host and TCP between hosts"),
    {.name = "devices",
     .type = KR_OPT_U32,
     .at = offsetof(node_options, devices),
     .min = 1,
     .max = KR_NODE_DEVICES_MAX,
     .value = "N",
     .help = "memory devices, each with its own pool and threads"},
    {.name = "threads-per-device",
     .letter = 't',
     .type = KR_OPT_U32,
     .at = offsetof(node_options, threads_per_device),
     .min = 1,
     .max = 256,
     .value = "N",
     .help = "threads that work on one device's memory"},
    {.name = "bind",
     .type = KR_OPT_FLAG,
     .at = offsetof(node_options, bind),
     .help = "bind a device's threads and memory to its part of the machine"},
    {.name = "memory",
     .letter = 'm',
     .type = KR_OPT_SIZE,
     .at = offsetof(node_options, memory),
     .min = 1 << 20,
     .value = "BYTES",
     .help = "KV and index memory of each device"},
    {.name = "sessions-max",
     .type = KR_OPT_U32,
     .at = offsetof(node_options, sessions_max),
     .min = 1,
     .max = 1 << 20,
     .value = "N",
     .help = "sessions open at a time, over all clients; a model's windowed layers get room for so many"},
    {.name = "message-max",
     .type = KR_OPT_SIZE,
     .at = offsetof(node_options, message_max),
     .min = 1 << 16,
     .max = KR_MSG_PAYLOAD_MAX,
     .value = "BYTES",
     .help = "largest message taken from a client"},
    {.name = "spin-us",
     .type = KR_OPT_U32,
     .at = offsetof(node_options, spin_us),
     .max = 10000,
     .value = "N",
     .help = "microseconds to look for the next message before sleeping; some hundred where the node has "
             "cores of its own, few where clients share them"},
    {.name = "save-folder",
     .type = KR_OPT_STRING,
     .at = offsetof(node_options, save_folder),
     .value = "FOLDER",
     .help = "where clients may save and restore sessions; without it they may not"},
    {.name = "method",
     .type = KR_OPT_STRINGS,
     .at = offsetof(node_options, methods),
     .value = "FILE,...",
     .help = "methods outside the tree (./my.so) that clients may name; they can load none themselves"},
    {.name = "json",
     .type = KR_OPT_FLAG,
     .at = offsetof(node_options, json),
     .help = "print one JSON line when ready"},
};

static const kr_command_line line = {
    .command = "node",
    .summary = "Serves memory: keeps the KV caches of clients and computes on them where they lie.",
    .options = table,
    .option_count = sizeof table / sizeof table[0],
    .example = "karat node --devices 2 --memory 8G\n"
               "karat node --listen 10.0.0.5:7420 --key-file node.key --transport tcp",
};

typedef struct {
    pthread_t thread;
    kr_node *node;
    kr_link *link;
    _Atomic bool done; /* the thread has nothing more to do but end */
    bool used;
} service;

typedef struct {
    kr_node *node;
    kr_ucx_listener *listener;
    kr_msg_welcome welcome;
    int signal_fd;
    service services[CLIENTS_MAX];
} daemon_state;

static void *serve(void *argument)
{
    service *s = argument;
    kr_err err = {0};

    kr_log(KR_LOG_INFO, "client at %s: connected", s->link->describe(s->link));
    const kr_status status = kr_node_serve(s->node, s->link, &err);
    kr_log(KR_LOG_INFO, "client at %s: %s", s->link->describe(s->link), status == KR_OK ? "left" : err.text);
    s->link->close(s->link);
    s->done = true;
    return NULL;
}

/* Frees the places of services that have ended; the number of those still running. */
static uint32_t reap(daemon_state *d)
{
    uint32_t running = 0;

    for (int i = 0; i < CLIENTS_MAX; i++) {
        service *s = &d->services[i];
        if (s->used && s->done) {
            KR_CHECK(pthread_join(s->thread, NULL) == 0);
            s->used = false;
        }
        running += s->used;
    }
    return running;
}

/* A client that we cannot serve hears why: an ERROR is the first thing it receives. */
static void refuse_client(const daemon_state *d, kr_link *link, const char *why)
{
    uint8_t payload[KR_MSG_ERROR_BYTES_MAX];
    kr_err failure;

    (void)kr_fail(&failure, KR_E_FULL, "the node serves no more clients: %s", why);
    kr_log(KR_LOG_WARN, "client at %s refused: %s", link->describe(link), failure.text);
    const kr_piece piece = {payload, kr_msg_error_write(&failure, payload)};
    (void)link->send(link, (kr_msg_header){.kind = KR_MSG_ERROR, .epoch = d->welcome.epoch}, &piece, 1,
                     kr_deadline_after(&kr_clock_system, TURN_MS * NS_PER_MS), NULL);
    link->close(link);
}

static void serve_client(daemon_state *d, kr_link *link)
{
    service *s = d->services, *end = s + CLIENTS_MAX;

    while (s < end && s->used)
        s++;
    if (s == end) {
        refuse_client(d, link, "as many as it can are connected");
        return;
    }
    *s = (service){.node = d->node, .link = link, .used = true};
    if (pthread_create(&s->thread, NULL, serve, s) != 0) {
        s->used = false;
        refuse_client(d, link, "out of threads");
    }
}

/* A signal that has arrived since the last look, or 0. */
static int signal_taken(const daemon_state *d)
{
    struct signalfd_siginfo info;
    return read(d->signal_fd, &info, sizeof info) == sizeof info ? (int)info.ssi_signo : 0;
}

static void pause_ms(uint32_t ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

static void run(daemon_state *d)
{
    int signal;

    while ((signal = signal_taken(d)) == 0) {
        kr_link *link = NULL;
        (void)reap(d);
        if (kr_ucx_accept(d->listener, &d->welcome, &link,
                          kr_deadline_after(&kr_clock_system, TURN_MS * NS_PER_MS), NULL) == KR_OK)
            serve_client(d, link);
    }
    kr_log(KR_LOG_INFO, "%s: stopping", strsignal(signal));
}

/* Ends the services. false: some would not end, or a second signal came; nothing may be freed. */
static bool stop(daemon_state *d)
{
    enum { LOOK_MS = 10 };
    uint32_t running;

    kr_node_stop(d->node);
    for (int waited = 0; (running = reap(d)) != 0 && waited < STOP_MS; waited += LOOK_MS) {
        if (signal_taken(d) != 0)
            break;
        pause_ms(LOOK_MS);
    }
    if (running != 0)
        kr_log(KR_LOG_WARN, "ending with %u clients still being served", running);
    return running == 0;
}

static int print_ready(const node_options *o, const daemon_state *d, const kr_cli_address *at, bool locked)
{
    const uint16_t port = kr_ucx_port(d->listener);
    char address[sizeof at->host + 16];

    snprintf(address, sizeof address, strchr(at->host, ':') != NULL ? "[%s]:%u" : "%s:%u", at->host, port);
    if (o->json) {
        json_t *root = json_pack(
            "{s:s, s:s, s:i, s:I, s:i, s:i, s:I, s:i, s:I, s:s, s:b, s:s}", "role", "node", "address",
            address, "port", (int)port, "epoch", (json_int_t)d->welcome.epoch, "devices", (int)o->devices,
            "threads_per_device", (int)o->threads_per_device, "memory_bytes", (json_int_t)o->memory,
            "sessions_max", (int)o->sessions_max, "message_bytes_max", (json_int_t)o->message_max,
            "transport", kr_cli_transports[o->transport], "key", locked, "kernels", kr_node_path(d->node));
        KR_CHECK(root != NULL);
        const bool failed = json_dumpf(root, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER) != 0; /* one line */
        json_decref(root);
        return failed || puts("") == EOF || fflush(stdout) != 0 ? KR_EXIT_FAILED : KR_EXIT_OK;
    }
    printf("karat node at %s: %u device%s of %.1f MiB with %u thread%s each, up to %u sessions\n"
           "transport %s; %s; epoch %u; %s\n",
           address, o->devices, o->devices == 1 ? "" : "s", (double)o->memory / (1 << 20),
           o->threads_per_device, o->threads_per_device == 1 ? "" : "s", o->sessions_max,
           kr_cli_transports[o->transport], locked ? "clients need the key" : "no key", d->welcome.epoch,
           kr_node_path(d->node));
    return fflush(stdout) == 0 ? KR_EXIT_OK : KR_EXIT_FAILED;
}

/* Signals wait in a file from here on, also for threads started later. -1: errno says why. */
static int signals_open(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGHUP);
    KR_CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    signal(SIGPIPE, SIG_IGN); /* a reader of our output that goes away is no reason to end */
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

/* What would else fail when a client comes to need it. */
static kr_status check_means(const node_options *o, kr_err *err)
{
    const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    struct stat folder;

    if (o->memory > machine / o->devices)
        return kr_fail(err, KR_E_MEMORY,
                       "--memory: %u device%s of %.1f GiB; this machine has %.1f GiB for all of them",
                       o->devices, o->devices == 1 ? "" : "s", (double)o->memory / (1 << 30),
                       (double)machine / (1 << 30));
    if (o->save_folder == NULL)
        return KR_OK;
    if (stat(o->save_folder, &folder) != 0)
        return kr_fail(err, KR_E_IO, "--save-folder %s: %s", o->save_folder, strerror(errno));
    if (!S_ISDIR(folder.st_mode))
        return kr_fail(err, KR_E_IO, "--save-folder %s: not a folder", o->save_folder);
    if (access(o->save_folder, R_OK | W_OK | X_OK) != 0)
        return kr_fail(err, KR_E_IO, "--save-folder %s: %s", o->save_folder, strerror(errno));
    return KR_OK;
}

static kr_status daemon_open(daemon_state *d, const node_options *o, const kr_ucx_config *config, kr_err *err)
{
    const kr_node_config node = {.devices = o->devices,
                                 .threads_per_device = o->threads_per_device,
                                 .bind = o->bind,
                                 .pool_bytes = o->memory,
                                 .sessions_max = o->sessions_max,
                                 .save_folder = o->save_folder,
                                 .clock = &kr_clock_system};
    d->signal_fd = signals_open();
    if (d->signal_fd < 0)
        return kr_fail(err, KR_E_IO, "cannot watch for signals: %s", strerror(errno));
    kr_status status = check_means(o, err);
    if (status == KR_OK)
        status = kr_ucx_listen(&d->listener, config, err);
    if (status != KR_OK)
        return status;
    status = kr_node_create(&d->node, &node, err);
    if (status != KR_OK) {
        kr_ucx_listener_close(d->listener);
        return status;
    }
    d->welcome = (kr_msg_welcome){.epoch = kr_node_epoch(d->node),
                                  .devices = o->devices,
                                  .beat_interval_ms = BEAT_MS,
                                  .dead_after_ms = DEAD_MS,
                                  .payload_max = o->message_max};
    return KR_OK;
}

static int daemon_run(const node_options *o, const kr_cli_address *at, const kr_cli_key *key)
{
    const kr_ucx_config config = {.host = at->host,
                                  .port = at->port,
                                  .transport = (kr_ucx_transport)o->transport,
                                  .key = key->bytes,
                                  .key_bytes = key->count,
                                  .payload_max = o->message_max,
                                  .timeout_ns = HANDSHAKE_MS * NS_PER_MS,
                                  .spin_us = o->spin_us,
                                  .clock = &kr_clock_system};
    daemon_state *d = kr_alloc(sizeof *d);
    kr_err err;

    KR_CHECK(d != NULL);
    if (daemon_open(d, o, &config, &err) != KR_OK) {
        kr_free(d);
        return kr_cli_failed(line.command, &err);
    }
    if (!kr_cli_is_loopback(at))
        kr_log(KR_LOG_WARN,
               "links are authenticated when they open but not encrypted: %s belongs on a trusted network",
               at->host);
    const int status = print_ready(o, d, at, key->count != 0);
    if (status == KR_EXIT_OK)
        run(d);
    if (!stop(d))
        _exit(KR_EXIT_FAILED);
    kr_ucx_listener_close(d->listener);
    kr_node_destroy(d->node);
    close(d->signal_fd);
    kr_free(d);
    return status;
}

static kr_status load_methods(const kr_option_strings *files, kr_err *err)
{
    kr_status status = KR_OK;

    for (uint32_t i = 0; i < files->count && status == KR_OK; i++) {
        const kr_method *method;

        status = kr_method_load(kr_option_string_at(files, i), &method, err);
        if (status == KR_OK)
            kr_log(KR_LOG_INFO, "method %s: %s", method->name, method->summary);
    }
    return status;
}

int kr_cmd_node(int argc, char **argv)
{
    node_options o = {.listen = "127.0.0.1:7420",
                      .devices = 1,
                      .threads_per_device = 1,
                      .sessions_max = 256,
                      .spin_us = 50,
                      .memory = (uint64_t)1 << 30,
                      .message_max = (uint64_t)256 << 20};
    kr_cli_address at;
    kr_cli_key key = {0};
    char **rest;
    int rest_count, status;
    kr_err err;

    if (!kr_options_parse(&line, argc, argv, &o, &rest, &rest_count, &status))
        return status;
    if (kr_cli_address_parse(o.listen, 0, &at, &err) != KR_OK)
        return kr_cli_misused(line.command, "--listen: %s", err.text);
    if (o.key_file == NULL && !kr_cli_is_loopback(&at))
        return kr_cli_misused(line.command, "--listen %s is open to a network: give --key-file", o.listen);
    if (load_methods(&o.methods, &err) != KR_OK)
        return kr_cli_failed(line.command, &err);
    if (o.key_file != NULL && kr_cli_key_read(o.key_file, &key, &err) != KR_OK)
        return kr_cli_failed(line.command, &err);
    status = daemon_run(&o, &at, &key);
    explicit_bzero(&key, sizeof key);
    return status;
}
