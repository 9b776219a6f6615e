/* One weight matrix as the compute node holds it: packed for its kernel, cut into units of outputs
 * that workers take in any order.
 *
 *   quantised (Q*)   panels of 16 outputs for ops/quant_dot; stays as small as in the file. The input
 *                    rows are rounded to 8 bits, which costs a divergence of 2.4e-3 (mean KL) from
 *                    the same weights in F32 on SmolLM2-135M Q4_1; tests/e2e/test_llama.c compares
 *                    such a run with llama.cpp's
 *   F16              panels of 64 outputs for ops/half_dot (oneDNN 2.6 has no F16): F32 activations
 *   F32, BF16        chunks of 64 outputs for oneDNN; BF16 where it has kernels for it, with BF16
 *                    activations, and like F16 where it has not
 *
 * Every unit's result for a row depends on that row and the weights alone. */
#ifndef KR_ENGINE_WEIGHTS_H
#define KR_ENGINE_WEIGHTS_H

#include "base/team.h"
#include "engine/gemm_dnnl.h"
#include "files/model_file.h"
#include "ops/half_dot.h"
#include "ops/quant_dot.h"
#include "ops/row_ops.h"

/* The form in which a matrix wants its input rows. */
typedef enum { KR_FORM_F32 = 1, KR_FORM_BF16 = 2, KR_FORM_INT8 = 4 } kr_form;

/* Who multiplies. */
typedef enum { KR_KERNEL_QUANT, KR_KERNEL_HALF, KR_KERNEL_GEMM, KR_KERNELS } kr_kernel;

typedef struct {
    kr_weight_type type; /* as stored in the file */
    kr_kernel kernel;
    kr_form form;
    uint32_t columns, outputs;
    uint32_t unit_outputs;           /* of every unit but the last, which may have fewer */
    uint32_t units;                  /* panels or chunks */
    uint64_t unit_bytes;             /* packed; the last chunk may take less */
    uint8_t *packed;                 /* [units], the owner's arena */
    const kr_gemm_plan *plan, *last; /* KR_KERNEL_GEMM: of whole chunks and of the last one */
    kr_gemm_weights **chunk;         /* KR_KERNEL_GEMM: [units], the owner's arena; else NULL */
} kr_matrix;

/* Input rows in the forms that were asked for; shared by the matrices of one op. */
typedef struct {
    uint32_t columns;
    const float *f32;    /* [rows][columns] */
    uint16_t *bf16;      /* [rows][columns] */
    int8_t *q;           /* [rows][columns] */
    kr_quant_meta *meta; /* [rows][columns / 32] */
} kr_inputs;

/* Decides how a tensor will be held; as_f32 expands every type to F32. Allocates nothing in an
 * arena; makes plans in gemm. */
kr_status kr_matrix_plan(kr_matrix *matrix, kr_gemm *gemm, const kr_tensor *tensor, bool as_f32, kr_err *err);
/* Bytes of matrix->packed and of matrix->chunk. */
uint64_t kr_matrix_packed_bytes(const kr_matrix *matrix);
uint64_t kr_matrix_chunk_bytes(const kr_matrix *matrix);
/* Packs the tensor (the one planned) into matrix->packed, set by the owner before, with the team;
 * staging memory is allocated and freed here. Then tells the system that the tensor's mapped
 * pages may leave memory, so that weights are not held twice. */
kr_status kr_matrix_pack(kr_matrix *matrix, kr_gemm *gemm, kr_team *team, const kr_tensor *tensor,
                         kr_err *err);
/* Ends what packing made in the library; packed itself is the arena's. */
void kr_matrix_drop(kr_matrix *matrix);

/* out[r * out_stride + o] for the outputs of units [first, first + count). */
void kr_matrix_multiply(const kr_matrix *matrix, kr_gemm *gemm, uint32_t worker, uint32_t first,
                        uint32_t count, const kr_inputs *inputs, uint32_t rows, float *out,
                        uint64_t out_stride);

#endif
