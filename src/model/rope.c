/* Frequency tables of rotary embeddings, in the forms that the supported families use. The results
 * are those of Hugging Face transformers' ROPE_INIT_FUNCTIONS up to F32 rounding: computed in
 * double here, in F32 there. */
#include <math.h>

#include "base/check.h"
#include "model/model.h"

static double clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/* Llama 3.1: frequencies whose wavelength passes original_context / low_freq are divided by factor,
 * those below original_context / high_freq stay, the band between is blended linearly. */
static double llama3_scaled(const kr_rope *rope, double frequency)
{
    const double turns = rope->original_context * frequency / (2.0 * M_PI);
    const double smooth = (turns - rope->low_freq) / (rope->high_freq - rope->low_freq);

    if (turns < rope->low_freq)
        return frequency / rope->factor;
    if (turns > rope->high_freq)
        return frequency;
    return (1.0 - smooth) * frequency / rope->factor + smooth * frequency;
}

/* Dimension pair whose frequency makes the given number of turns over the original context. */
static double yarn_pair_of_turns(const kr_rope *rope, double turns)
{
    return rope->dims * log(rope->original_context / (turns * 2.0 * M_PI)) / (2.0 * log(rope->theta));
}

/* YaRN (Peng et al. 2023): pairs that turn often stay, pairs that turn rarely are divided by factor,
 * with a linear ramp between, whose ends are rounded outwards to whole pairs. */
static double yarn_scaled(const kr_rope *rope, uint32_t pair, double frequency)
{
    const double low = clamp(floor(yarn_pair_of_turns(rope, rope->beta_fast)), 0.0, rope->dims - 1.0);
    double high = clamp(ceil(yarn_pair_of_turns(rope, rope->beta_slow)), 0.0, rope->dims - 1.0);
    double ramp;

    if (high == low)
        high += 0.001; /* as in the reference: a step instead of a division by zero */
    ramp = clamp((pair - low) / (high - low), 0.0, 1.0);
    return frequency / rope->factor * ramp + frequency * (1.0 - ramp);
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

/* The ratio of the two scales when both are given, else the scale for mscale = 1. */
static double yarn_attention_factor(const kr_rope *rope)
{
    if (rope->mscale != 0.0 && rope->mscale_all_dim != 0.0)
        return yarn_mscale(rope->factor, rope->mscale) / yarn_mscale(rope->factor, rope->mscale_all_dim);
    return yarn_mscale(rope->factor, 1.0);
}

double kr_rope_frequencies(const kr_rope *rope, float *inv_freq)
{
    KR_CHECK(rope->dims % 2 == 0);
    for (uint32_t i = 0; i < rope->dims / 2; i++) {
        double frequency = pow(rope->theta, -2.0 * i / rope->dims);

        switch (rope->scaling) {
        case KR_ROPE_PLAIN:
            break;
        case KR_ROPE_LINEAR:
            frequency /= rope->factor;
            break;
        case KR_ROPE_LLAMA3:
            frequency = llama3_scaled(rope, frequency);
            break;
        case KR_ROPE_YARN:
            frequency = yarn_scaled(rope, i, frequency);
            break;
        }
        inv_freq[i] = (float)frequency;
    }
    return rope->scaling == KR_ROPE_YARN ? yarn_attention_factor(rope) : 1.0;
}
