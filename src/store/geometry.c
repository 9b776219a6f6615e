/* Sizes that follow from a configuration. */
#include "store/geometry.h"

#include "base/num.h"

uint64_t kr_geometry_record_bytes(const kr_geometry *g, uint32_t layer)
{
    return kr_align_up(sizeof(kr_record_header) + g->plan[layer].record_body_bytes, 64);
}

static kr_status check_groups(const kr_geometry *g, kr_err *err)
{
    for (uint32_t l = 0; l < g->layers; l++) {
        const uint32_t group = g->group_of[l];

        if (group >= g->groups)
            return kr_fail(err, KR_E_SHAPE, "layer %u is in group %u of %u", l, group, g->groups);
        if (g->shape[l].window != g->window[group])
            return kr_fail(err, KR_E_SHAPE, "layer %u has window %u, its group %u has %u", l,
                           g->shape[l].window, group, g->window[group]);
        if (!g->plan[l].owns_index &&
            (g->plan[l].index_owner >= l || !g->plan[g->plan[l].index_owner].owns_index))
            return kr_fail(err, KR_E_SHAPE,
                           "layer %u uses the index of layer %u, which is not an earlier one with an index",
                           l, g->plan[l].index_owner);
    }
    return KR_OK;
}

kr_status kr_geometry_complete(kr_geometry *g, kr_err *err)
{
    bool seen[KR_GROUPS_MAX] = {false, false};
    kr_status status = KR_OK;

    g->record_bytes = 0;
    g->sharable = true;
    for (uint32_t l = 0; l < g->layers && status == KR_OK; l++) {
        status = g->method[l]->plan(&g->config[l], &g->shape[l], g->context_max, &g->plan[l], err);
        if (status == KR_OK && g->plan[l].priced_only)
            status = kr_fail(err, KR_E_UNSUPPORTED,
                             "layer %u: these parameters of %s are a paper's accounting, which can be "
                             "priced, but not run",
                             l, g->method[l]->name);
        if (status != KR_OK)
            return status;
        if (g->group_of[l] < KR_GROUPS_MAX && !seen[g->group_of[l]]) {
            seen[g->group_of[l]] = true;
            g->window[g->group_of[l]] = g->shape[l].window;
        }
        g->record_bytes += kr_geometry_record_bytes(g, l);
        g->sharable &= g->plan[l].record_body_bytes == 0;
    }
    status = check_groups(g, err);
    for (uint32_t i = 0; i < g->groups && status == KR_OK; i++) {
        if (!seen[i])
            return kr_fail(err, KR_E_SHAPE, "layer group %u has no layer", i);
        status = kr_layout_page(g->shape, g->plan, g->group_of, g->layers, i, g->layout, &g->page_bytes[i],
                                err);
    }
    return status;
}

uint64_t kr_geometry_pages(const kr_geometry *g, uint32_t group, uint64_t tokens)
{
    const uint64_t all = kr_ceil_div(tokens, KR_PAGE_TOKENS);

    if (g->window[group] == 0)
        return all;
    /* The window before a message's first token and the message itself, at any alignment; twice the
     * message, as the next part of a prompt may follow in the other micro-batch. */
    const uint64_t tokens_kept = (uint64_t)g->window[group] - 1 + 2 * (uint64_t)g->tokens_max;
    const uint64_t live = kr_ceil_div(tokens_kept, KR_PAGE_TOKENS) + 1;
    return all < live ? all : live;
}

uint64_t kr_geometry_first_page(const kr_geometry *g, uint32_t group, uint64_t tokens)
{
    const uint64_t window = g->window[group];

    return window == 0 || tokens + 1 <= window ? 0 : (tokens + 1 - window) / KR_PAGE_TOKENS;
}
