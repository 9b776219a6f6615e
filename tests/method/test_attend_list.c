/* Attention over lists of several segments: a decode step gives the bits of a prompt row, and both agree
 * with float64, with and without a window, whatever lies on pages before it. */
#include "method/training_free.h"
#include "session.h"

enum { HEADS = 4, KV = 2, D = 16, TOKENS = 2 * KR_SEGMENT + 300 };

static kr_attention_shape shape_of(uint32_t window)
{
    return (kr_attention_shape){.heads = HEADS,
                                .kv_heads = KV,
                                .key_dim = D,
                                .value_dim = D,
                                .kv_dtype = KR_F32,
                                .softmax_scale = 0.25f,
                                .window = window,
                                .layers = 1};
}

/* The newest token's output: as a decode step, or as the last of a prompt's last 3 rows. The layer is
 * dense; what was stored before needs no attention. */
static void newest(const feed *f, uint32_t window, bool decode, float out[HEADS * D])
{
    float *all = session_memory(sizeof(float) * TOKENS * HEADS * D, 0);
    session *s = session_open(&kr_method_snapkv, (kr_method_config){.dense_layers = 1}, shape_of(window),
                              TOKENS, 3);
    const uint32_t rows = decode ? 1 : 3;

    session_store(s, f->key, f->value, TOKENS - rows);
    session_run(s, feed_chunk(f, s, TOKENS - rows, rows, !decode, all));
    memcpy(out, all + (size_t)(TOKENS - 1) * HEADS * D, sizeof(float) * HEADS * D);
    session_close(s);
    free(all);
}

static void segments_and_windows(void **state)
{
    (void)state;
    kr_rng rng = test_rng("attend_list");
    static const uint32_t windows[] = {0, 1, 100, KR_SEGMENT + 7, TOKENS - 1, TOKENS};
    const kr_attention_shape shape = shape_of(0);
    feed f = feed_random(&rng, &shape, TOKENS);
    float decode[HEADS * D], prompt[HEADS * D];
    uint32_t token[TOKENS];
    double want[D];

    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        const uint32_t seen = windows[w] != 0 ? windows[w] : TOKENS;

        newest(&f, windows[w], true, decode);
        newest(&f, windows[w], false, prompt);
        assert_memory_equal(decode, prompt, sizeof decode);
        for (uint32_t i = 0; i < seen; i++)
            token[i] = TOKENS - seen + i;
        for (uint32_t h = 0; h < HEADS; h++) {
            oracle_attend(f.query + ((size_t)(TOKENS - 1) * HEADS + h) * D, f.key, f.value, KV, D, D,
                          h / (HEADS / KV), token, seen, 0.25, want);
            for (uint32_t d = 0; d < D; d++)
                if (fabs((double)decode[h * D + d] - want[d]) > 1e-5)
                    fail_msg("window %u head %u dim %u: %.8g, float64 %.8g", windows[w], h, d,
                             (double)decode[h * D + d], want[d]);
        }
    }
    feed_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(segments_and_windows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
