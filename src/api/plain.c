/* Plain softmax attention of one query over given lists of units, whatever the layer's method: two stages
 * over the layer's key layout. Where a method's own attention is plain too, these are its bits. */
#include "api/inside.h"
#include "method/attend_list.h"
#include "method/tiled.h"

/* The stages below find the number of lists behind the job. */
typedef struct {
    kr_job job; /* first */
    uint32_t lists;
} list_job;

static uint32_t lists_of(const kr_job *job) { return ((const list_job *)(const void *)job)->lists; }

static uint32_t rows_attend_parts(const kr_job *job)
{
    return kr_attend_list_parts(job, &kr_list_units, lists_of(job));
}
static void rows_attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    kr_attend_list_run(job, &kr_list_units, lists_of(job), part, scratch);
}
static uint32_t rows_merge_parts(const kr_job *job) { return kr_merge_list_parts(job, lists_of(job)); }
static void rows_merge_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    (void)scratch;
    kr_merge_list_run(job, &kr_list_units, lists_of(job), part);
}

static kr_unit_list tiled_list(const kr_job *job, uint32_t head)
{
    const uint32_t list = head / (job->view->shape->heads / lists_of(job));

    return (kr_unit_list){job->selected + (size_t)list * job->selected_stride, job->selected_count[list],
                          job->plan->unit_tokens};
}
static uint32_t tiled_segments(const kr_job *job, uint32_t head)
{
    return kr_segments(kr_unit_list_positions(job->view, tiled_list(job, head)));
}
static uint32_t tiled_attend_parts(const kr_job *job)
{
    return job->view->shape->heads * kr_segments(job->view->tokens);
}
static void tiled_attend_run(const kr_job *job, uint32_t part, kr_scratch scratch)
{
    const uint32_t head = part % job->view->shape->heads, segment = part / job->view->shape->heads;

    if (segment < tiled_segments(job, head))
        kr_tiled_list_run(job, tiled_list(job, head), head, segment, job->workspace, scratch);
}
static uint32_t tiled_merge_parts(const kr_job *job) { return job->view->shape->heads; }
static void tiled_merge_run(const kr_job *job, uint32_t head, kr_scratch scratch)
{
    (void)scratch;
    kr_tiled_merge(job, head, tiled_segments(job, head), job->workspace);
}

static const kr_stage rows_stage[] = {{.parts = rows_attend_parts, .run = rows_attend_run},
                                      {.parts = rows_merge_parts, .run = rows_merge_run}};
static const kr_stage tiled_stage[] = {{.parts = tiled_attend_parts, .run = tiled_attend_run},
                                       {.parts = tiled_merge_parts, .run = tiled_merge_run}};

void kr_api_attend(karat_selector *selector, const kr_job *job, uint32_t lists)
{
    kr_method_plan plan = *job->plan;
    const kr_stage *stage = plan.keys == KR_KEYS_TILED ? tiled_stage : rows_stage;
    list_job own = {*job, lists};

    plan.selected_max = 0; /* the caller's lists may be as long as the context */
    own.job.plan = &plan;
    kr_api_run(selector, &stage[0], &own.job);
    kr_api_run(selector, &stage[1], &own.job);
}
