/* What the parts of the C API share: a selector is a store with one device, the memory that its calls
 * work in, and threads. A sequence is a session of the store.
 *
 *   sequence: prompt --end_prompt--> generating --append of prompt rows--> prompt
 *             select, attend and generated rows only while generating */
#ifndef KR_API_INSIDE_H
#define KR_API_INSIDE_H

#include "api/api.h"
#include "base/team.h"
#include "karat/selector.h"
#include "store/store.h"

/* Query rows that one job of prompt rows has at most. */
enum { KR_API_CHUNK = 256 };

struct karat_selector {
    kr_store store;
    const kr_ops *ops;
    kr_team *team;
    bool has_values;
    uint64_t seed;
    kr_arena memory; /* all that follows; sized for the layer that needs most */
    uint8_t *workspace, *scratch;
    size_t scratch_bytes;       /* of each thread */
    uint32_t chunk;             /* rows that selected has room for, at most KR_API_CHUNK */
    uint32_t *selected, *count; /* of chunk rows */
    uint8_t *key, *value;       /* packed rows of a chunk */
    float *output;              /* of a chunk, when the caller wants none */
    karat_sequence *sequences;  /* open ones */
};

struct karat_sequence {
    karat_selector *selector;
    kr_kv_session *session;
    bool in_prompt;
    karat_sequence *next;
};

/* The kernels in use, chosen at the first call. */
const kr_ops *kr_api_ops(void);

/* Lists of a query row in a layer and room of one, in units; both 0 in a dense layer. */
uint32_t kr_api_lists(const karat_selector *selector, uint32_t layer);
uint32_t kr_api_stride(const kr_geometry *geometry, uint32_t layer);

/* KR_E_ARG unless each of count [lists], unit [lists][stride] is ascending and below units. */
kr_status kr_api_units(const uint32_t *count, const uint32_t *unit, uint32_t lists, uint32_t stride,
                       uint64_t units, kr_err *err);

/* Runs all parts of a stage on the selector's threads. */
void kr_api_run(karat_selector *selector, const kr_stage *stage, const kr_job *job);
/* Plain attention of a job's query over its `lists` selected lists, which are valid: kr_api_units. */
void kr_api_attend(karat_selector *selector, const kr_job *job, uint32_t lists);

#endif
