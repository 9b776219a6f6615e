/* Attention over tiled keys, shared by the methods that use KR_KEYS_TILED.
 *
 * A list of positions is cut into segments of KR_SEGMENT; each (KV head, segment) or (head, segment)
 * gives a partial result, and partials are merged in list order. The dense list is every position
 * of the session, so that its segments start at multiples of KR_SEGMENT whatever the window; a
 * selected list is the positions of its units. Decode (one query row) keeps the partials in the
 * job's workspace, so that segments run in parallel where their pages lie; prefill walks the
 * segments of a block of tokens in one part. Both do the same arithmetic for a row. */
#ifndef KR_METHOD_TILED_H
#define KR_METHOD_TILED_H

#include "method/method.h"

/* Per-thread scratch for any part below. */
size_t kr_tiled_scratch_bytes(const kr_attention_shape *shape);
/* Partial results of one query row: bytes for lists of up to positions positions. */
size_t kr_tiled_partial_bytes(const kr_attention_shape *shape, uint64_t positions);

/* Dense attention of all of a job's rows; partials of a decode row at workspace. */
uint32_t kr_tiled_dense_parts(const kr_job *job);
void kr_tiled_dense_run(const kr_job *job, uint32_t part, void *workspace, kr_scratch scratch);
uint32_t kr_tiled_dense_device(const kr_job *job, uint32_t part);

/* Attention of one query head to the positions of a list of units, segment by segment. */
typedef struct {
    const uint32_t *unit; /* [units] ascending */
    uint32_t units;
    uint32_t unit_tokens; /* a divisor or a multiple of KR_TILE_TOKENS, dividing KR_PAGE_TOKENS */
} kr_unit_list;

/* Positions of the list; only its last unit may be cut, by the session's end. */
uint64_t kr_unit_list_positions(const kr_view *view, kr_unit_list list);
void kr_tiled_list_run(const kr_job *job, kr_unit_list list, uint32_t head, uint32_t segment, void *workspace,
                       kr_scratch scratch);
/* The device that holds all pages of the segment, or home. */
uint32_t kr_tiled_list_device(const kr_view *view, kr_unit_list list, uint32_t segment);

/* Merges `segments` partials of head, from segment `first` on, into the output of the decode row. */
void kr_tiled_merge(const kr_job *job, uint32_t head, uint32_t segments, void *workspace);
/* Segments the dense decode row has partials of. */
uint32_t kr_tiled_dense_segments(const kr_job *job);

#endif
