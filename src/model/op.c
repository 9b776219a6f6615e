/* Names of op kinds, stages and placements. */
#include "model/op.h"

#include <string.h>

const char *kr_op_name(kr_op_kind kind)
{
    static const char *const names[KR_OP_KINDS] = {
#define KR_OP_TEXT(name, text) text,
        KR_OP_LIST(KR_OP_TEXT)
#undef KR_OP_TEXT
    };

    return (unsigned)kind < KR_OP_KINDS ? names[kind] : "?";
}

const char *kr_stage_name(kr_stage_kind stage)
{
    static const char *const names[KR_STAGES] = {"append", "score", "select", "gather", "attend", "merge"};

    return (unsigned)stage < KR_STAGES ? names[stage] : "?";
}

static const char *const placement_names[] = {
    [KR_PLACE_ALL_ON_NODE] = "all-on-node",
    [KR_PLACE_INDICES_ONLY] = "indices-only",
    [KR_PLACE_ALL_ON_COMPUTE] = "all-on-compute",
};

enum { PLACEMENTS = sizeof placement_names / sizeof placement_names[0] };

const char *kr_placement_name(kr_placement placement)
{
    return (unsigned)placement < PLACEMENTS ? placement_names[placement] : "?";
}

bool kr_placement_parse(const char *name, kr_placement *placement)
{
    for (unsigned i = 0; i < PLACEMENTS; i++) {
        if (strcmp(name, placement_names[i]) == 0) {
            *placement = (kr_placement)i;
            return true;
        }
    }
    return false;
}
