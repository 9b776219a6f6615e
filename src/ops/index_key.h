/* What turns a projected index query or key of the lightning indexer into its stored form: LayerNorm
 * (keys), RoPE on the first dims, Hadamard rotation, E4M3 with a power-of-two scale. Runs on the
 * compute node, one vector at a time; the order and the constants are those of the DeepSeek-V3.2
 * reference. Scalar only: a few thousand operations a token. */
#ifndef KR_OPS_INDEX_KEY_H
#define KR_OPS_INDEX_KEY_H

#include <stdbool.h>
#include <stdint.h>

/* x <- weight * (x - mean) / sqrt(variance + eps) + bias, sums in F64. */
void kr_layer_norm(float *x, const float *weight, const float *bias, uint32_t dim, double eps);

/* Rotates pairs of the first dims elements by angle position * inv_freq[i]: (i, i + dims/2), or
 * (2i, 2i + 1) when interleaved. Sine and cosine in F64. */
void kr_rope_first(float *x, const float *inv_freq, uint32_t dims, uint64_t position, bool interleaved);

/* x <- H x / sqrt(dim), H the Hadamard matrix in Sylvester order; dim a power of two. */
void kr_hadamard(float *x, uint32_t dim);

/* code[i] = E4M3(x[i] / s), s = 2^ceil(log2(max(max |x|, 1e-4) / 448)), and returns s. A NaN or
 * infinite element makes every code of the vector NaN (0x7f), so that its key is counted and never
 * selected. */
float kr_e4m3_quantise(const float *x, uint32_t dim, uint8_t *code);

#endif
