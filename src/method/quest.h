/* Quest: pages ranked by an upper bound of q.k from elementwise key bounds (quest.c). */
#ifndef KR_METHOD_QUEST_H
#define KR_METHOD_QUEST_H

#include "method/method.h"

/* kr_method_config.mode. */
enum {
    KR_QUEST_EVAL = 1,   /* the newest page competes like any other; at least 3 pages */
    KR_QUEST_KERNEL = 2, /* the newest page is not scored and always attended */
};

extern const kr_method kr_method_quest;

#endif
