/* The table behind weight_type.h. */
#include "ops/weight_type.h"

#include "base/check.h"

static const kr_weight_type_info infos[KR_W_TYPES] = {
#define KR_WEIGHT_INFO(type, text, elements, bytes, code) [type] = {text, elements, bytes, code},
    KR_WEIGHT_TYPE_LIST(KR_WEIGHT_INFO)
#undef KR_WEIGHT_INFO
};

const kr_weight_type_info *kr_weight_type_of(kr_weight_type type)
{
    KR_CHECK((unsigned)type < KR_W_TYPES);
    return &infos[type];
}
