/* Rows that will be read soon, fetched a line at a time between the steps of a product. They are
 * scattered, so no hardware prefetcher finds them; bursts would fill the line-fill buffers and stall. */
#ifndef KR_OPS_ATTEND_AHEAD_H
#define KR_OPS_ATTEND_AHEAD_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const void *const *row, *const *end;
    size_t at, bytes; /* of a row */
} upcoming;

static inline void fetch_line(upcoming *u)
{
    if (u->row == u->end)
        return;
    __builtin_prefetch((const uint8_t *)*u->row + u->at);
    u->at += 64;
    if (u->at >= u->bytes) {
        u->at = 0;
        u->row++;
    }
}

#endif
