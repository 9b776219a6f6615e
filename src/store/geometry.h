/* What every session of a configured node looks like: shape, method and plan of each layer, and how
 * a page of each layer group is laid out. Made once at CONFIGURE, then only read. */
#ifndef KR_STORE_GEOMETRY_H
#define KR_STORE_GEOMETRY_H

#include "method/layout.h"
#include "method/method.h"

enum { KR_GROUPS_MAX = 2 };

typedef struct {
    uint32_t layers, groups;
    uint64_t context_max; /* tokens of the longest session */
    uint32_t tokens_max;  /* new tokens of one message */
    uint64_t fingerprint; /* of the model */
    kr_attention_shape shape[KR_LAYERS_MAX];
    kr_method_config config[KR_LAYERS_MAX];
    const kr_method *method[KR_LAYERS_MAX];
    kr_method_plan plan[KR_LAYERS_MAX];
    uint8_t group_of[KR_LAYERS_MAX];
    kr_layout layout[KR_LAYERS_MAX];
    uint32_t window[KR_GROUPS_MAX];     /* of the group's layers; 0 = all */
    uint64_t page_bytes[KR_GROUPS_MAX]; /* 0: the group has no layer */
    uint64_t record_bytes;              /* of one session: records of all layers, aligned */
    bool sharable;                      /* no record body: pages alone make a prefix */
} kr_geometry;

/* Completes a geometry whose counts, shapes, configs, methods and groups are set: plans, layouts,
 * sizes. KR_E_SHAPE, KR_E_UNSUPPORTED, KR_E_LIMIT name the layer. */
kr_status kr_geometry_complete(kr_geometry *geometry, kr_err *err);

/* Pages of a group that a session of tokens occupies at most, its window's and one message's
 * growth counted. */
uint64_t kr_geometry_pages(const kr_geometry *geometry, uint32_t group, uint64_t tokens);

/* First page of a group that a session of tokens still needs: no later query sees an earlier one. */
uint64_t kr_geometry_first_page(const kr_geometry *geometry, uint32_t group, uint64_t tokens);

/* Bytes of one session's record of a layer, header included. */
uint64_t kr_geometry_record_bytes(const kr_geometry *geometry, uint32_t layer);

#endif
