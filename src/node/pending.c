/* Selections on their way from an INDEX message to the ATTENDs that use them: the layer's own, and
 * those of the layers that share its index. One per device, client and micro-batch; a new one replaces
 * it, and a slot of a client that has left serves the next. */
#include <string.h>

#include "node/state.h"

static node_pending *find(const node_device *device, uint64_t client, uint32_t micro_batch)
{
    for (uint32_t i = 0; i < device->pending_count; i++) {
        node_pending *p = &device->pending[i];
        if (p->valid && p->client == client && p->micro_batch == micro_batch)
            return p;
    }
    return NULL;
}

/* A slot without a selection. */
static kr_status free_slot(node_device *device, node_pending **slot, kr_err *err)
{
    uint32_t i = 0;

    while (i < device->pending_count && device->pending[i].valid)
        i++;
    if (i == device->pending_count) {
        node_pending *more = kr_realloc(device->pending, (i + 1) * sizeof *more);
        if (more == NULL)
            return kr_fail(err, KR_E_MEMORY, "no memory for a selection that waits");
        more[i] = (node_pending){0};
        device->pending = more;
        device->pending_count++;
    }
    *slot = &device->pending[i];
    return KR_OK;
}

void node_pending_drop(node_device *device, uint64_t client)
{
    for (uint32_t i = 0; i < device->pending_count; i++)
        if (client == UINT64_MAX || device->pending[i].client == client)
            device->pending[i].valid = false;
}

kr_status node_pending_keep(node_device *device, const kr_message *index, uint64_t client,
                            const kr_msg_row *row, uint32_t rows, uint64_t selection_bytes,
                            const uint32_t *selection, kr_err *err)
{
    node_pending *p = find(device, client, index->header.micro_batch);
    kr_status status = p != NULL ? KR_OK : free_slot(device, &p, err);

    if (status != KR_OK)
        return status;
    p->valid = false;
    status = node_buffer_need(&p->row, rows * sizeof *row, err);
    if (status == KR_OK)
        status = node_buffer_need(&p->selection, selection_bytes, err);
    if (status != KR_OK)
        return status;
    if (rows != 0) {
        memcpy(p->row.data, row, rows * sizeof *row);
        memcpy(p->selection.data, selection, selection_bytes);
    }
    p->client = client;
    p->micro_batch = index->header.micro_batch;
    p->step = index->header.step;
    p->layer = index->header.layer;
    p->rows = rows;
    p->selection_bytes = selection_bytes;
    p->valid = true;
    return KR_OK;
}

kr_status node_pending_use(const node_device *device, const kr_message *attend, uint64_t client,
                           uint32_t owner, const kr_msg_row *row, uint32_t rows, uint64_t selection_bytes,
                           uint32_t *selection, kr_err *err)
{
    const node_pending *p = find(device, client, attend->header.micro_batch);

    if (p == NULL || p->step != attend->header.step || p->layer != owner || p->rows != rows ||
        p->selection_bytes != selection_bytes ||
        (rows != 0 && memcmp(p->row.data, row, rows * sizeof *row) != 0))
        return kr_fail(err, KR_E_ARG,
                       "ATTEND of layer %u without an INDEX of the same rows in layer %u before it",
                       attend->header.layer, owner);
    if (rows != 0)
        memcpy(selection, p->selection.data, selection_bytes);
    return KR_OK;
}
