/* Running the stages of jobs on devices' teams.
 *
 * The parts of all jobs of a stage form one job of the team, so that many small sessions fill all
 * threads. Parts whose pages lie on another device are run there: the home device asks, and while
 * it waits it runs what others ask of it, so that two devices may need each other at once. */
#include "node/state.h"

#include "base/check.h"

struct stage_run {
    kr_node *node;
    kr_stage_kind stage;
    node_job *jobs;
    const uint32_t *start; /* [count + 1] first part of each job */
    node_device *owner;    /* who waits for a help run */
    struct stage_run *next;
    uint32_t count;
    bool spilled; /* some job has pages elsewhere: parts ask where they belong */
    bool done;    /* under owner->lock */
};

/* One device's share of a run. */
typedef struct {
    const stage_run *run;
    node_device *device;
} device_share;

kr_scratch node_scratch(const node_device *device, uint32_t worker)
{
    return (kr_scratch){device->scratch.data + worker * device->scratch_bytes, device->scratch_bytes};
}

/* Job of a part: the last one that starts at or before it. */
static uint32_t job_of(const uint32_t *start, uint32_t count, uint32_t part)
{
    uint32_t low = 0, high = count;

    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        *(start[middle] <= part ? &low : &high) = middle;
    }
    return low;
}

static void run_part(void *context, uint32_t part, uint32_t worker)
{
    const device_share *share = context;
    const stage_run *run = share->run;
    const uint32_t j = job_of(run->start, run->count, part), own = part - run->start[j];
    const node_job *job = &run->jobs[j];
    const kr_stage *stage = &job->method->stage[run->stage];

    if (run->spilled) {
        const uint32_t where = stage->device != NULL && job->session->spilled ? stage->device(&job->job, own)
                                                                              : job->session->home;
        if (where != share->device->number)
            return;
    }
    stage->run(&job->job, own, node_scratch(share->device, worker));
}

static void run_share(const stage_run *run, node_device *device)
{
    device_share share = {run, device};

    kr_team_run(device->team, run_part, &share, run->start[run->count]);
}

void node_run_help(node_device *device)
{
    while (device->help != NULL) {
        stage_run *run = device->help;
        node_device *owner = run->owner;

        device->help = run->next;
        pthread_mutex_unlock(&device->lock);
        run_share(run, device);
        pthread_mutex_lock(&owner->lock);
        run->done = true;
        pthread_cond_signal(&owner->changed);
        pthread_mutex_unlock(&owner->lock);
        pthread_mutex_lock(&device->lock);
    }
}

/* Asks other for its share and returns at once; wait_for later. */
static void ask(stage_run *help, node_device *other)
{
    pthread_mutex_lock(&other->lock);
    help->next = other->help;
    other->help = help;
    pthread_cond_signal(&other->changed);
    pthread_mutex_unlock(&other->lock);
}

static void wait_for(node_device *device, const stage_run *help)
{
    pthread_mutex_lock(&device->lock);
    while (!help->done) {
        if (device->help != NULL)
            node_run_help(device);
        else
            pthread_cond_wait(&device->changed, &device->lock);
    }
    pthread_mutex_unlock(&device->lock);
}

/* All devices' shares of a run over spilled sessions. */
static void run_everywhere(kr_node *node, node_device *device, const stage_run *run)
{
    const uint32_t devices = node->config.devices;
    stage_run help[KR_NODE_DEVICES_MAX];

    for (uint32_t d = 0; d < devices; d++) {
        help[d] = *run;
        if (&node->device[d] != device && node->threaded)
            ask(&help[d], &node->device[d]);
    }
    run_share(run, device);
    for (uint32_t d = 0; d < devices; d++) {
        if (&node->device[d] == device)
            continue;
        if (node->threaded)
            wait_for(device, &help[d]);
        else
            run_share(run, &node->device[d]);
    }
}

void node_run_stage(kr_node *node, node_device *device, kr_stage_kind stage, node_job *jobs, uint32_t count)
{
    uint32_t *start = (uint32_t *)(void *)device->starts.data; /* room was made with the jobs */
    stage_run run = {
        .node = node, .stage = stage, .jobs = jobs, .start = start, .count = count, .owner = device};
    const uint64_t begin = kr_now_ns(node->config.clock);

    KR_CHECK(device->starts.capacity >= (count + 1) * sizeof *start);
    start[0] = 0;
    for (uint32_t j = 0; j < count; j++) {
        const kr_stage *s = &jobs[j].method->stage[stage];
        start[j + 1] = start[j] + (s->run != NULL ? s->parts(&jobs[j].job) : 0);
        run.spilled |= jobs[j].session->spilled;
    }
    if (start[count] == 0)
        return;
    if (run.spilled)
        run_everywhere(node, device, &run);
    else
        run_share(&run, device);
    device->stage_ns[stage] += kr_now_ns(node->config.clock) - begin;
}

/* ---- new rows ---- */

typedef struct {
    kr_node *node;
    node_job *jobs;
    const uint32_t *start;
    uint32_t count;
} write_run;

static void write_part(void *context, uint32_t part, uint32_t worker)
{
    const write_run *run = context;
    const uint32_t j = job_of(run->start, run->count, part);
    const node_job *job = &run->jobs[j];
    const uint64_t page = job->job.first_position / KR_PAGE_TOKENS + (part - run->start[j]);

    (void)worker;
    kr_kv_session_write(&run->node->store, job->session, job->view.shape->layer, job->job.first_position,
                        job->job.queries, page, job->key, job->value);
}

void node_write_rows(kr_node *node, node_device *device, node_job *jobs, uint32_t count)
{
    uint32_t *start = (uint32_t *)(void *)device->starts.data;
    write_run run = {node, jobs, start, count};
    const uint64_t begin = kr_now_ns(node->config.clock);

    start[0] = 0;
    for (uint32_t j = 0; j < count; j++) {
        const uint64_t first = jobs[j].job.first_position, last = first + jobs[j].job.queries - 1;
        const uint32_t pages = (uint32_t)(last / KR_PAGE_TOKENS - first / KR_PAGE_TOKENS + 1);
        start[j + 1] = start[j] + (jobs[j].key != NULL ? pages : 0);
    }
    kr_team_run(device->team, write_part, &run, start[count]);
    device->stage_ns[KR_STAGE_APPEND] += kr_now_ns(node->config.clock) - begin;
}
