/* Generators on the counter-based RNG: stream s + 1 of the seed belongs to session s.
 *
 * A session draws its number of turns (lognormal around the median, at most 600), the new tokens and
 * the generated tokens of every turn (lognormal around their medians), and the level of its inputs:
 * lognormal with the spread of KVCT's per-session means, and independent of the turns, as KVCT's are
 * nearly. The first input is the level less half of the growth to be expected, at least the tools and
 * system prompt of an agent; every turn adds its new tokens, and nothing shrinks. Levels are scaled
 * once, by bisection over the whole trace, so that the mean over sessions of the mean input is the
 * recipe's; an input over the largest context is held there. Spreads of turns, new and generated tokens
 * are KVCT's: 1.0, 1.2 and 1.1 in natural logarithm, from quantiles 10 and 90 (own arithmetic on 710
 * sessions). */
#include "workload/generate.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

static const double TURN_SPREAD = 1.0, PREFILL_SPREAD = 1.2, DECODE_SPREAD = 1.1, LEVEL_SPREAD = 0.75;
enum { TURNS_MAX = 600, FIRST_MIN = 13000, SESSIONS_MAX = 1 << 16, SCALE_ROUNDS = 40 };

static const kr_trace_recipe recipes[] = {
    {"swe-pro", 30, 63e3, 295e3, 324, 263, 0.97},
    {"swe-chat", 39, 81e3, 1.06e6, 387, 47, 0.97},
    {"kvct-like", 48, 144e3, 894e3, 647, 218, 0.94},
};

const kr_trace_recipe *kr_trace_recipe_find(const char *name)
{
    for (size_t i = 0; i < sizeof recipes / sizeof recipes[0]; i++)
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    return NULL;
}

static uint64_t lognormal(kr_rng *rng, double median, double spread)
{
    const double value = median * exp(spread * kr_rng_normal(rng));

    return value < 1.0 ? 1 : value > 1e6 ? 1000000 : (uint64_t)(value + 0.5);
}

typedef struct {
    kr_rng rng;
    uint32_t turns;
    double level; /* of the first input, before scaling */
} session;

static session draw(const kr_trace_recipe *recipe, uint64_t seed, uint32_t s)
{
    session result = {.rng = kr_rng_make(seed, (uint64_t)s + 1)};
    const uint64_t turns = lognormal(&result.rng, recipe->turns, TURN_SPREAD);

    result.turns = turns < TURNS_MAX ? (uint32_t)turns : TURNS_MAX;
    result.level = exp(LEVEL_SPREAD * kr_rng_normal(&result.rng));
    return result;
}

static uint64_t first_input(const session *s, const kr_trace_recipe *recipe, double scale)
{
    const double growth = recipe->prefill * exp(0.5 * PREFILL_SPREAD * PREFILL_SPREAD) * s->turns;
    const double first = s->level * scale - 0.5 * growth;

    return first < FIRST_MIN ? FIRST_MIN : (uint64_t)first;
}

/* One turn on from *input; the next input is held at the largest. */
static kr_trace_turn next_turn(session *s, const kr_trace_recipe *recipe, uint64_t *input)
{
    kr_trace_turn turn = {.think_us = KR_TRACE_NONE, .api_us = KR_TRACE_NONE, .cached_tokens = *input};

    *input += lognormal(&s->rng, recipe->prefill, PREFILL_SPREAD);
    if (*input > (uint64_t)recipe->peak)
        *input = (uint64_t)recipe->peak;
    turn.input_tokens = *input;
    turn.output_tokens = lognormal(&s->rng, recipe->decode, DECODE_SPREAD);
    return turn;
}

static double mean_of(const kr_trace_recipe *recipe, uint32_t sessions, uint64_t seed, double scale)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < sessions; i++) {
        session s = draw(recipe, seed, i);
        uint64_t input = first_input(&s, recipe, scale);
        double inputs = 0.0;

        for (uint32_t t = 0; t < s.turns; t++)
            inputs += (double)next_turn(&s, recipe, &input).input_tokens;
        sum += inputs / s.turns;
    }
    return sum / sessions;
}

static double find_scale(const kr_trace_recipe *recipe, uint32_t sessions, uint64_t seed)
{
    double low = 0.0, high = recipe->peak;

    for (int i = 0; i < SCALE_ROUNDS; i++) {
        const double middle = 0.5 * (low + high);

        if (mean_of(recipe, sessions, seed, middle) < recipe->session_context)
            low = middle;
        else
            high = middle;
    }
    return low;
}

kr_status kr_trace_generate(kr_trace *trace, const kr_trace_recipe *recipe, uint32_t sessions, uint64_t seed,
                            kr_err *err)
{
    kr_trace result = {.format = KR_TRACE_SYNTHETIC};
    kr_trace_builder b;
    kr_status status = KR_OK;
    double scale;

    if (sessions == 0 || sessions > SESSIONS_MAX)
        return kr_fail(err, KR_E_ARG, "trace: %u sessions to generate, must be 1 to %d", sessions,
                       SESSIONS_MAX);
    scale = find_scale(recipe, sessions, seed);
    kr_trace_builder_init(&b, &result, recipe->name);
    for (uint32_t i = 0; i < sessions && status == KR_OK; i++) {
        session s = draw(recipe, seed, i);
        uint64_t input = first_input(&s, recipe, scale);
        char id[KR_TRACE_ID_BYTES];

        snprintf(id, sizeof id, "%s %u", recipe->name, i);
        status = kr_trace_begin(&b, id, i + 1, err);
        for (uint32_t t = 0; t < s.turns && status == KR_OK; t++) {
            kr_trace_turn turn = next_turn(&s, recipe, &input);

            if (t == 0)
                turn.cached_tokens = 0;
            status = kr_trace_add_turn(&b, &turn, true, 0, i + 1, err);
        }
        if (status == KR_OK)
            status = kr_trace_end(&b, i + 1, err);
    }
    kr_trace_builder_free(&b);
    if (status == KR_OK)
        status = kr_trace_seal(&result, recipe->name, err);
    if (status == KR_OK)
        *trace = result;
    else
        kr_trace_free(&result);
    return status;
}
