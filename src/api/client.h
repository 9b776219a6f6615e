/* Inside of a client of a memory node, shared by the files of karat/client.h and by nobody else. */
#ifndef KR_API_CLIENT_H
#define KR_API_CLIENT_H

#include "api/api.h"
#include "base/arena.h"
#include "engine/peer.h"
#include "karat/client.h"
#include "method/method.h"

struct karat_session {
    karat_client *client;
    karat_session *next; /* in the client's list */
    uint64_t handle, tokens_max;
    uint32_t device;  /* home inside the node */
    uint64_t call;    /* last call it had an item in */
    uint64_t *tokens; /* [layers] present */
};

/* What a message of tokens_max tokens is made of. */
typedef struct {
    kr_arena arena;
    kr_msg_row *row;              /* [tokens_max] */
    uint8_t *query, *key, *value; /* [tokens_max][heads][dim] as on the wire */
    uint8_t *index_query, *index_key;
    float *one; /* one row of one head */
} kr_client_rows;

/* A configuration: what the node is told, and what follows from it. */
typedef struct {
    kr_msg_configure configure;
    kr_msg_layer layer[KR_LAYERS_MAX];
    karat_client_plan of[KR_LAYERS_MAX]; /* [layers] */
    kr_client_rows rows;
} kr_client_plan;

struct karat_client {
    kr_peer peer;
    uint64_t message_bytes_max; /* that both ends take */
    bool configured;
    kr_client_plan plan; /* once configured */
    uint32_t *selected;  /* [selected_max] indices of a reply; grows when selections are asked for */
    uint64_t selected_max;
    karat_session *sessions;
    uint64_t calls;
    uint64_t step; /* of the last INDEX; layers that share its selection repeat it */
};

/* KR_E_ARG for a null client, the first cause for a lost node. */
kr_status kr_client_usable(const karat_client *client, kr_err *err);
kr_status kr_client_send_plan(karat_client *client, const kr_client_plan *plan, kr_err *err);
void kr_client_free_session(karat_session *session);

#endif
