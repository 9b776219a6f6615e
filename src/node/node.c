/* The node's life, its connections, and the way of a message to its device. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "base/log.h"
#include "node/state.h"

enum { PROBE_MS = 30 };
#define REPLY_NS ((uint64_t)30000000000) /* a client that takes no reply for so long is lost */
#define LISTEN_NS ((uint64_t)100000000)  /* how soon kr_node_stop is seen */

/* ---- one message ---- */

kr_status node_reply(node_connection *connection, const kr_message *request, kr_msg_kind kind, uint32_t rows,
                     const kr_piece *pieces, uint32_t count, kr_err *err)
{
    kr_node *node = connection->node;
    const kr_msg_header *h = &request->header;
    const kr_msg_header reply = {
        .kind = (uint16_t)kind,
        .epoch = node->epoch,
        .micro_batch = h->micro_batch,
        .layer = h->layer,
        .device = h->device,
        .rows = rows,
        .sequence = h->sequence,
        .step = h->step,
    };
    const kr_status status = connection->link->send(connection->link, reply, pieces, count,
                                                    kr_deadline_after(node->config.clock, REPLY_NS), err);

    for (uint32_t i = 0; i < count; i++)
        node->bytes_out += pieces[i].bytes;
    if (status != KR_OK) {
        pthread_mutex_lock(&connection->lock);
        connection->broken = true;
        pthread_mutex_unlock(&connection->lock);
    }
    return status;
}

static bool is_broken(node_connection *connection)
{
    pthread_mutex_lock(&connection->lock);
    const bool broken = connection->broken;
    pthread_mutex_unlock(&connection->lock);
    return broken;
}

/* Answers a message that failed; a failure to answer is seen through connection->broken. */
static void answer_error(node_connection *connection, const kr_message *m, const kr_err *failure)
{
    uint8_t bytes[KR_MSG_ERROR_BYTES_MAX];
    const kr_piece piece = {bytes, kr_msg_error_write(failure, bytes)};

    if (!is_broken(connection))
        (void)node_reply(connection, m, KR_MSG_ERROR, 0, &piece, 1, NULL);
}

static kr_status attend_checked(kr_node *node, node_connection *connection, const kr_message *m, kr_err *err)
{
    node_device *device = &node->device[m->header.device];
    kr_status status;

    pthread_rwlock_rdlock(&node->configuration);
    if (!node->configured) {
        status = kr_fail(err, KR_E_ARG, "%s before CONFIGURE", kr_msg_name((kr_msg_kind)m->header.kind));
    } else if (m->header.layer >= node->store.geometry.layers) {
        status = kr_fail(err, KR_E_ARG, "%s for layer %u of %u", kr_msg_name((kr_msg_kind)m->header.kind),
                         m->header.layer, node->store.geometry.layers);
    } else {
        pthread_mutex_lock(&device->work);
        status = node_attend(node, device, connection, m, err);
        pthread_mutex_unlock(&device->work);
    }
    pthread_rwlock_unlock(&node->configuration);
    return status;
}

/* Handles one message to its reply and releases it. */
static void handle(kr_node *node, node_connection *connection, kr_message *m)
{
    kr_err failure = {0};
    kr_status status = KR_OK;

    node->messages++;
    node->bytes_in += m->header.payload_bytes;
    if (m->header.epoch != node->epoch)
        status = kr_fail(&failure, KR_E_STALE, "message for epoch %u of the node; it is %u: connect again",
                         m->header.epoch, node->epoch);
    else if (m->header.device >= node->config.devices)
        status = kr_fail(&failure, KR_E_ARG, "message for device %u of %u", m->header.device,
                         node->config.devices);
    else if (m->header.kind == KR_MSG_ATTEND || m->header.kind == KR_MSG_INDEX)
        status = attend_checked(node, connection, m, &failure);
    else
        status = node_control(node, connection, m, &failure);
    if (status != KR_OK)
        answer_error(connection, m, &failure);
    connection->link->release(connection->link, m);
}

/* ---- device threads ---- */

static void *device_main(void *context)
{
    node_device *device = context;
    kr_node *node = device->node;

    if (node->cpus != NULL)
        kr_bind_thread(node->cpus[device->number * node->config.threads_per_device]);
    pthread_mutex_lock(&device->lock);
    for (;;) {
        node_item *item = device->first;

        if (device->help != NULL) {
            node_run_help(device);
            continue;
        }
        if (item == NULL) {
            if (device->stop)
                break;
            pthread_cond_wait(&device->changed, &device->lock);
            continue;
        }
        device->first = item->next;
        pthread_mutex_unlock(&device->lock);
        node_connection *connection = item->connection;
        handle(node, connection, &item->message);
        kr_free(item);
        pthread_mutex_lock(&connection->lock);
        if (--connection->in_flight == 0)
            pthread_cond_signal(&connection->idle);
        pthread_mutex_unlock(&connection->lock);
        pthread_mutex_lock(&device->lock);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

static void stop_threads(kr_node *node, uint32_t started)
{
    for (uint32_t d = 0; d < started; d++) {
        pthread_mutex_lock(&node->device[d].lock);
        node->device[d].stop = true;
        pthread_cond_signal(&node->device[d].changed);
        pthread_mutex_unlock(&node->device[d].lock);
        KR_CHECK(pthread_join(node->device[d].thread, NULL) == 0);
    }
}

static kr_status start_threads(kr_node *node, kr_err *err)
{
    kr_status status = KR_OK;

    pthread_mutex_lock(&node->start);
    for (uint32_t d = 0; !node->threaded && d < node->config.devices; d++)
        if (pthread_create(&node->device[d].thread, NULL, device_main, &node->device[d]) != 0) {
            stop_threads(node, d);
            status = kr_fail(err, KR_E_MEMORY, "cannot start the thread of device %u", d);
            break;
        }
    node->threaded |= status == KR_OK;
    pthread_mutex_unlock(&node->start);
    return status;
}

/* Gives a message to its device's thread. */
static kr_status enqueue(kr_node *node, node_connection *connection, const kr_message *m, uint32_t d,
                         kr_err *err)
{
    node_device *device = &node->device[d];
    node_item *item = kr_alloc(sizeof *item);

    if (item == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory to queue a message");
    *item = (node_item){.message = *m, .connection = connection};
    pthread_mutex_lock(&connection->lock);
    connection->in_flight++;
    pthread_mutex_unlock(&connection->lock);
    pthread_mutex_lock(&device->lock);
    if (device->first == NULL)
        device->first = item;
    else
        device->last->next = item;
    device->last = item;
    pthread_cond_signal(&device->changed);
    pthread_mutex_unlock(&device->lock);
    return KR_OK;
}

/* The device whose thread must handle the message, or UINT32_MAX: the connection's own thread. */
static uint32_t device_of(kr_node *node, node_connection *connection, const kr_message *m)
{
    const uint16_t kind = m->header.kind;
    uint32_t device = UINT32_MAX;

    if (kind == KR_MSG_ATTEND || kind == KR_MSG_INDEX)
        return m->header.device < node->config.devices ? m->header.device : UINT32_MAX;
    if (kind != KR_MSG_TRIM && kind != KR_MSG_END_PREFILL && kind != KR_MSG_CLOSE && kind != KR_MSG_SAVE)
        return UINT32_MAX;
    pthread_rwlock_rdlock(&node->configuration);
    if (node->configured)
        device = node_home_of(node, connection, m);
    pthread_rwlock_unlock(&node->configuration);
    return device;
}

/* ---- connections ---- */

static void connection_init(node_connection *connection, kr_node *node, kr_link *link, uint64_t client)
{
    *connection = (node_connection){.node = node, .link = link, .client = client};
    KR_CHECK(pthread_mutex_init(&connection->lock, NULL) == 0);
    KR_CHECK(pthread_cond_init(&connection->idle, NULL) == 0);
}

static void connection_end(node_connection *connection)
{
    pthread_cond_destroy(&connection->idle);
    pthread_mutex_destroy(&connection->lock);
}

static void wait_until_idle(node_connection *connection)
{
    pthread_mutex_lock(&connection->lock);
    while (connection->in_flight != 0)
        pthread_cond_wait(&connection->idle, &connection->lock);
    pthread_mutex_unlock(&connection->lock);
}

/* Receives and passes on messages until the connection ends. */
static kr_status serve(kr_node *node, node_connection *connection, kr_err *err)
{
    while (!node->stop) {
        kr_message m;
        uint32_t device;
        kr_status status = connection->link->receive(connection->link, &m,
                                                     kr_deadline_after(node->config.clock, LISTEN_NS), err);

        if (status == KR_E_DEADLINE && !is_broken(connection))
            continue;
        if (status == KR_E_STALE || status == KR_E_CHECKSUM) { /* dropped by the link, which goes on */
            kr_log(KR_LOG_WARN, "client %llu: %s", (unsigned long long)connection->client, err->text);
            continue;
        }
        if (status != KR_OK)
            return is_broken(connection) ? kr_fail(err, KR_E_LOST, "a reply could not be sent") : status;
        if (m.header.kind == KR_MSG_BYE) {
            connection->link->release(connection->link, &m);
            return KR_OK;
        }
        device = node->config.devices > 1 ? device_of(node, connection, &m) : UINT32_MAX;
        if (device != UINT32_MAX)
            status = enqueue(node, connection, &m, device, err);
        else
            handle(node, connection, &m);
        if (status != KR_OK)
            return status;
    }
    return KR_OK;
}

kr_status kr_node_serve(kr_node *node, kr_link *link, kr_err *err)
{
    node_connection connection;
    kr_err own = {0};
    kr_status status = node->config.devices > 1 ? start_threads(node, err) : KR_OK;

    if (status != KR_OK)
        return status;
    connection_init(&connection, node, link, ++node->clients);
    status = serve(node, &connection, err != NULL ? err : &own);
    wait_until_idle(&connection);
    pthread_rwlock_rdlock(&node->configuration);
    node_close_sessions(node, connection.client);
    pthread_rwlock_unlock(&node->configuration);
    connection_end(&connection);
    return status;
}

kr_status kr_node_step(kr_node *node, kr_link *link, uint64_t deadline_ns, kr_err *err)
{
    node_connection connection;
    kr_message m;
    kr_status status = link->receive(link, &m, deadline_ns, err);

    if (status != KR_OK)
        return status;
    connection_init(&connection, node, link, 0);
    connection.configuration = node->configurations; /* its one client's own */
    if (m.header.kind == KR_MSG_BYE) {
        link->release(link, &m);
        pthread_rwlock_rdlock(&node->configuration);
        node_close_sessions(node, 0);
        pthread_rwlock_unlock(&node->configuration);
    } else {
        handle(node, &connection, &m);
    }
    status = connection.broken ? kr_fail(err, KR_E_LOST, "a reply could not be sent") : KR_OK;
    connection_end(&connection);
    return status;
}

void kr_node_stop(kr_node *node) { node->stop = true; }

/* ---- life ---- */

static void free_device(node_device *device)
{
    node_buffer *buffer[] = {&device->scratch,   &device->rows,   &device->jobs,   &device->starts,
                             &device->workspace, &device->output, &device->counts, &device->indices};

    for (size_t i = 0; i < sizeof buffer / sizeof buffer[0]; i++)
        node_buffer_free(buffer[i]);
    for (uint32_t i = 0; i < device->pending_count; i++) {
        node_buffer_free(&device->pending[i].row);
        node_buffer_free(&device->pending[i].selection);
    }
    kr_free(device->pending);
    kr_team_destroy(device->team);
    pthread_mutex_destroy(&device->work);
    pthread_mutex_destroy(&device->lock);
    pthread_cond_destroy(&device->changed);
}

static kr_status make_device(kr_node *node, uint32_t d, kr_err *err)
{
    node_device *device = &node->device[d];
    const uint32_t threads = node->config.threads_per_device;

    device->number = d;
    device->node = node;
    KR_CHECK(pthread_mutex_init(&device->work, NULL) == 0);
    KR_CHECK(pthread_mutex_init(&device->lock, NULL) == 0);
    KR_CHECK(pthread_cond_init(&device->changed, NULL) == 0);
    return kr_team_create(&device->team, threads, node->cpus != NULL ? node->cpus + d * threads : NULL, err);
}

static kr_status check_config(const kr_node_config *c, kr_err *err)
{
    if (c->devices == 0 || c->devices > KR_NODE_DEVICES_MAX || c->threads_per_device == 0 ||
        c->threads_per_device > KR_TEAM_THREADS_MAX || c->sessions_max == 0 || c->clock == NULL)
        return kr_fail(
            err, KR_E_LIMIT, "node of %u devices with %u threads for %u sessions; at most %d devices of %d",
            c->devices, c->threads_per_device, c->sessions_max, KR_NODE_DEVICES_MAX, KR_TEAM_THREADS_MAX);
    return KR_OK;
}

/* Everything that can fail; kr_node_destroy undoes what was done. */
static kr_status make_node(kr_node *node, kr_err *err)
{
    const kr_node_config *c = &node->config;
    kr_status status = KR_OK;

    if (c->save_folder != NULL) {
        const size_t bytes = strlen(c->save_folder) + 1;
        if (bytes > sizeof node->save_folder)
            return kr_fail(err, KR_E_LIMIT, "save folder's name is longer than %zu bytes",
                           sizeof node->save_folder - 1);
        memcpy(node->save_folder, c->save_folder, bytes);
    }
    if (c->bind) {
        node->cpus = kr_alloc(sizeof *node->cpus * c->devices * c->threads_per_device);
        if (node->cpus == NULL)
            return kr_fail(err, KR_E_MEMORY, "no memory for a table of CPUs");
        status = kr_bind_cpus(c->devices, c->threads_per_device, node->cpus, err);
    }
    node->device = status == KR_OK ? kr_alloc(sizeof *node->device * c->devices) : NULL;
    if (status == KR_OK && node->device == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for %u devices", c->devices);
    for (uint32_t d = 0; d < c->devices && status == KR_OK; d++) {
        status = make_device(node, d, err);
        node->devices_made = d + 1;
    }
    return status;
}

kr_status kr_node_create(kr_node **node, const kr_node_config *config, kr_err *err)
{
    kr_status status = check_config(config, err);
    kr_node *n;

    if (status != KR_OK)
        return status;
    n = kr_alloc(sizeof *n);
    if (n == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a node");
    n->config = *config;
    KR_CHECK(pthread_rwlock_init(&n->configuration, NULL) == 0);
    KR_CHECK(pthread_mutex_init(&n->start, NULL) == 0);
    n->epoch = config->epoch != 0 ? config->epoch : (uint32_t)(kr_now_ns(config->clock) >> 10) | 1;
    kr_cpu_choose(PROBE_MS, &n->ops, &n->probe);
    status = make_node(n, err);
    if (status != KR_OK)
        kr_node_destroy(n);
    else
        *node = n;
    return status;
}

void kr_node_destroy(kr_node *node)
{
    if (node == NULL)
        return;
    if (node->threaded)
        stop_threads(node, node->config.devices);
    node_unconfigure(node);
    for (uint32_t d = 0; d < node->devices_made; d++)
        free_device(&node->device[d]);
    kr_free(node->device);
    kr_free(node->cpus);
    pthread_mutex_destroy(&node->start);
    pthread_rwlock_destroy(&node->configuration);
    kr_free(node);
}

uint32_t kr_node_epoch(const kr_node *node) { return node->epoch; }

const char *kr_node_path(const kr_node *node) { return node->probe.chosen; }
