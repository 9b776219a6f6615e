/* Starting and stopping a node inside the client's process. */
#include "node/embedded.h"

#include <string.h>

#include "base/log.h"
#include "wire/queue.h"

enum { QUEUE_DEPTH = 256 }; /* messages; a step has two a device and micro-batch in flight */

kr_status kr_embedded_drive(void *context, uint64_t deadline_ns, kr_err *err)
{
    kr_embedded *embedded = context;
    return kr_node_step(embedded->node, embedded->server, deadline_ns, err);
}

static void *serve(void *context)
{
    kr_embedded *embedded = context;
    kr_err err = {0};
    if (kr_node_serve(embedded->node, embedded->server, &err) != KR_OK)
        kr_log(KR_LOG_ERROR, "embedded memory node: %s", err.text);
    return NULL;
}

static kr_status start(kr_embedded *embedded, const kr_node_config *config, kr_err *err)
{
    kr_status status = kr_node_create(&embedded->node, config, err);
    if (status == KR_OK)
        status = kr_queue_pair(&embedded->client, &embedded->server, QUEUE_DEPTH, config->clock, err);
    if (status != KR_OK)
        return status;
    embedded->welcome = (kr_msg_welcome){.epoch = kr_node_epoch(embedded->node), .devices = config->devices};
    if (embedded->driven)
        return KR_OK;
    const int failure = pthread_create(&embedded->thread, NULL, serve, embedded);
    if (failure != 0)
        return kr_fail(err, KR_E_MEMORY, "cannot start the embedded node's thread: %s", strerror(failure));
    embedded->served = true;
    return KR_OK;
}

kr_status kr_embedded_start(kr_embedded *embedded, const kr_node_config *config, bool driven, kr_err *err)
{
    *embedded = (kr_embedded){.driven = driven};
    kr_status status = start(embedded, config, err);
    if (status != KR_OK)
        kr_embedded_stop(embedded);
    return status;
}

void kr_embedded_stop(kr_embedded *embedded)
{
    if (embedded->served) {
        kr_node_stop(embedded->node);
        pthread_join(embedded->thread, NULL);
    }
    if (embedded->client != NULL)
        embedded->client->close(embedded->client);
    if (embedded->server != NULL)
        embedded->server->close(embedded->server);
    if (embedded->node != NULL)
        kr_node_destroy(embedded->node);
    *embedded = (kr_embedded){0};
}
