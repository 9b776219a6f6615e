/* Both halves of choosing a data path. */
#include "wire/path.h"

#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"
#include "wire/payload.h"

/* A path that works proves itself in microseconds; more is a path that does not. */
#define PROVE_NS ((uint64_t)1000000000)

enum { OFFERS_MAX = 3 };

static const char *transport_name(uint32_t transport)
{
    return transport == KR_PATH_SHM ? "shared memory" : "tcp";
}

static const char *set_name(uint32_t transports)
{
    return transports == KR_PATH_ALL ? "shm or tcp" : transports == KR_PATH_SHM ? "shm" : "tcp";
}

/* A number equal in two processes only if they can share memory as UCX does it: one kernel, one user
 * and user namespace, one PID namespace (segments are opened through /proc), one network namespace
 * (a sleeping receiver is woken through an abstract socket), one /dev/shm. */
static uint64_t host_id(void)
{
    static const char *const parts[] = {"/proc/self/ns/pid", "/proc/self/ns/user", "/proc/self/ns/net",
                                        "/dev/shm"};
    struct {
        char boot[64];
        uint64_t part[2 * sizeof parts / sizeof parts[0]], user;
    } id = {0};
    struct stat s;

    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, id.boot, sizeof id.boot) <= 0)
        (void)gethostname(id.boot, sizeof id.boot - 1);
    if (fd >= 0)
        close(fd);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (stat(parts[i], &s) == 0) {
            id.part[2 * i] = s.st_dev;
            id.part[2 * i + 1] = s.st_ino;
        }
    }
    id.user = geteuid();
    return kr_hash64(&id, sizeof id, 0);
}

static kr_status send_path(const kr_path_config *c, uint32_t transports, const kr_data *data, kr_err *err)
{
    uint8_t payload[KR_CONTROL_PAYLOAD_MAX];
    size_t bytes = 0;
    const uint8_t *address = data != NULL ? kr_data_address(data, &bytes) : NULL;
    const kr_msg_path path = {transports, (uint32_t)bytes, host_id()};

    memcpy(payload, &path, sizeof path);
    if (bytes != 0)
        memcpy(payload + sizeof path, address, bytes);
    return kr_control_send(c->control, (kr_msg_header){.kind = KR_MSG_PATH, .epoch = c->epoch}, payload,
                           sizeof path + bytes, c->deadline_ns, err);
}

static kr_status open_data(const kr_path_config *c, uint32_t transport, kr_data **data, kr_err *err)
{
    char interface[IF_NAMESIZE] = "";
    kr_data_config config = {transport, interface, c->spin_ns, c->control->clock};

    if (transport == KR_PATH_TCP) {
        kr_status status = kr_control_interface(c->control, interface, sizeof interface, err);
        if (status != KR_OK)
            return status;
    }
    return kr_data_open(data, &config, err);
}

/* Sends own proof over the data path and checks the peer's. After a failure the frames may still be
 * UCX's: the path must be closed while both are in scope, hence at *frames, the caller's. */
typedef struct {
    uint8_t out[KR_MSG_HEADER_BYTES + KR_PROOF_BYTES], in[KR_MSG_HEADER_BYTES + KR_PROOF_BYTES];
} proof_frames;

static kr_status prove(const kr_path_config *c, kr_data *data, kr_role own, kr_role peer, proof_frames *f,
                       kr_err *err)
{
    const uint64_t in_time = kr_deadline_after(c->control->clock, PROVE_NS);
    const uint64_t deadline_ns = in_time < c->deadline_ns ? in_time : c->deadline_ns;
    kr_msg_header header = {.kind = KR_MSG_PROOF, .epoch = c->epoch};
    bool released;

    kr_handshake_prove(c->handshake, own, f->out + KR_MSG_HEADER_BYTES);
    kr_msg_seal(&header, f->out + KR_MSG_HEADER_BYTES, KR_PROOF_BYTES, f->out);
    kr_status status = kr_data_send(data, f->out, sizeof f->out, deadline_ns, &released, err);
    if (status == KR_OK)
        status = kr_data_receive(data, f->in, sizeof f->in, deadline_ns, err);
    if (status == KR_OK)
        status = kr_msg_header_read(f->in, &header, err);
    if (status == KR_OK &&
        (header.kind != KR_MSG_PROOF || header.payload_bytes != KR_PROOF_BYTES || header.epoch != c->epoch ||
         !kr_handshake_check(c->handshake, peer, f->in + KR_MSG_HEADER_BYTES)))
        status = kr_fail(err, KR_E_AUTH, "the data path leads to somebody else than %s", c->control->peer);
    return status;
}

/* One attempt of the client. *again: the control socket is fit for another offer. */
static kr_status client_try(const kr_path_config *c, uint32_t allowed, kr_data **out, uint32_t *transport,
                            bool *again, kr_err *err)
{
    kr_control_message m;
    proof_frames frames;
    const uint8_t *address = NULL;
    kr_msg_path path;
    kr_data *data = NULL;
    kr_status status = send_path(c, allowed, NULL, err);

    *again = false;
    if (status == KR_OK)
        status = kr_control_expect(c->control, KR_MSG_PATH, &m, c->deadline_ns, err);
    if (status == KR_OK)
        status = kr_msg_path_read(m.payload, m.header.payload_bytes, &path, &address, err);
    if (status == KR_OK && (path.address_bytes == 0 || (path.transports & allowed) == 0))
        status = kr_fail(err, KR_E_FORMAT, "%s chose a transport that was not offered", c->control->peer);
    if (status != KR_OK)
        return status;

    *transport = path.transports;
    *again = true;
    status = open_data(c, path.transports, &data, err);
    if (status != KR_OK)
        return status;
    status = kr_data_connect(data, address, err);
    if (status == KR_OK)
        status = send_path(c, path.transports, data, err);
    if (status == KR_OK)
        status = prove(c, data, KR_ROLE_CLIENT_DATA, KR_ROLE_NODE_DATA, &frames, err);
    if (status == KR_OK)
        status = kr_control_send(c->control, (kr_msg_header){.kind = KR_MSG_DONE, .epoch = c->epoch}, NULL, 0,
                                 c->deadline_ns, err);
    if (status == KR_OK)
        status = kr_control_expect(c->control, KR_MSG_DONE, &m, c->deadline_ns, err);
    if (status != KR_OK) {
        kr_data_close(data);
        return status;
    }
    *out = data;
    return KR_OK;
}

kr_status kr_path_client(const kr_path_config *c, kr_data **data, uint32_t *transport, kr_err *err)
{
    uint32_t allowed = c->transports, tried = 0;
    bool again = true;
    kr_err failure = {0};
    kr_status status = KR_E_INTERNAL;

    while (again && allowed != 0) {
        status = client_try(c, allowed, data, &tried, &again, &failure);
        if (status == KR_OK) {
            *transport = tried;
            return KR_OK;
        }
        allowed &= ~tried;
        if (again && allowed != 0)
            kr_log(KR_LOG_WARN, "%s to %s failed (%s); trying %s", transport_name(tried), c->control->peer,
                   failure.text, transport_name(allowed));
    }
    if (err != NULL)
        *err = failure;
    return status;
}

/* Opens the best transport that both ends allow. */
static kr_status node_choose(const kr_path_config *c, const kr_msg_path *offer, kr_data **data,
                             uint32_t *transport, kr_err *err)
{
    const bool one_host = offer->host == host_id();
    uint32_t common = offer->transports & c->transports;
    kr_status status;

    if (!one_host)
        common &= ~(uint32_t)KR_PATH_SHM;
    if (common == 0)
        return kr_fail(err, KR_E_UNSUPPORTED, "client allows %s and node %s, and they are %s",
                       set_name(offer->transports), set_name(c->transports),
                       one_host ? "on one host" : "on two hosts (or two users or containers of one)");
    *transport = (common & KR_PATH_SHM) != 0 ? KR_PATH_SHM : KR_PATH_TCP;
    status = open_data(c, *transport, data, err);
    if (status != KR_OK && (common & ~*transport) != 0) {
        kr_log(KR_LOG_WARN, "%s for %s failed (%s); trying tcp", transport_name(*transport), c->control->peer,
               err->text);
        *transport = common & ~*transport;
        status = open_data(c, *transport, data, err);
    }
    return status;
}

/* The node's part once its path is open and *m holds the client's answer. KR_IN_PROGRESS: the client
 * gave this path up and *m is its next message. */
static kr_status node_try(const kr_path_config *c, kr_data *data, proof_frames *frames, kr_control_message *m,
                          kr_err *err)
{
    const uint8_t *address = NULL;
    kr_msg_path answer;
    kr_err path_failure = {0};
    kr_status status = kr_msg_path_read(m->payload, m->header.payload_bytes, &answer, &address, err);

    if (status != KR_OK)
        return status;
    if (answer.address_bytes == 0) /* a new offer: the client could not open this one */
        return KR_IN_PROGRESS;
    kr_status path_status = kr_data_connect(data, address, &path_failure);
    if (path_status == KR_OK)
        path_status = prove(c, data, KR_ROLE_NODE_DATA, KR_ROLE_CLIENT_DATA, frames, &path_failure);
    status = kr_control_receive(c->control, m, c->deadline_ns, err);
    if (status != KR_OK)
        return status;
    if (m->header.kind == KR_MSG_PATH)
        return KR_IN_PROGRESS;
    if (m->header.kind != KR_MSG_DONE)
        return kr_fail(err, KR_E_FORMAT, "%s sent %s where DONE was due", c->control->peer,
                       kr_msg_name(m->header.kind));
    if (path_status == KR_OK)
        return kr_control_send(c->control, (kr_msg_header){.kind = KR_MSG_DONE, .epoch = c->epoch}, NULL, 0,
                               c->deadline_ns, err);
    kr_control_send_error(c->control, &path_failure, c->deadline_ns);
    status = kr_control_expect(c->control, KR_MSG_PATH, m, c->deadline_ns, err);
    return status == KR_OK ? KR_IN_PROGRESS : status;
}

kr_status kr_path_node(const kr_path_config *c, kr_data **out, uint32_t *transport, kr_err *err)
{
    kr_control_message m;
    kr_err failure = {0};
    kr_status status = kr_control_expect(c->control, KR_MSG_PATH, &m, c->deadline_ns, &failure);

    for (int offers = 0; status == KR_OK && offers < OFFERS_MAX; offers++) {
        const uint8_t *address = NULL;
        proof_frames frames;
        kr_msg_path offer;
        kr_data *data = NULL;
        uint32_t chosen = 0;

        status = kr_msg_path_read(m.payload, m.header.payload_bytes, &offer, &address, &failure);
        if (status == KR_OK)
            status = node_choose(c, &offer, &data, &chosen, &failure);
        if (status != KR_OK) {
            kr_control_send_error(c->control, &failure, c->deadline_ns);
            break;
        }
        status = send_path(c, chosen, data, &failure);
        if (status == KR_OK)
            status = kr_control_expect(c->control, KR_MSG_PATH, &m, c->deadline_ns, &failure);
        if (status == KR_OK)
            status = node_try(c, data, &frames, &m, &failure);
        if (status == KR_OK) {
            *out = data;
            *transport = chosen;
            return KR_OK;
        }
        kr_data_close(data);
        if (status == KR_IN_PROGRESS)
            status = KR_OK;
    }
    if (status == KR_OK)
        status = kr_fail(&failure, KR_E_FORMAT, "%s offered a data path %d times", c->control->peer,
                         OFFERS_MAX);
    if (err != NULL)
        *err = failure;
    return status;
}
