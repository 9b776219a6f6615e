/* F32 and BF16 matrix products through oneDNN (C API of 2.6): the only file that knows it.
 *
 * A matrix is cut into chunks of up to 64 outputs, each packed by oneDNN and run as a unit of its
 * own on whichever of karat's workers takes it; columns (the summed dimension) are never cut. The
 * library is kept to the calling thread. Rows are taken in tiles of 64, 32, ... 1 where the
 * library's kernel sums each row in one order whatever the tile (its "brg" kernels, AVX-512: a
 * test holds that), and one by one where it does not, so a row's bits depend on nothing else. */
#ifndef KR_ENGINE_GEMM_DNNL_H
#define KR_ENGINE_GEMM_DNNL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/num.h"
#include "base/status.h"

enum { KR_GEMM_OUTPUTS = 64 };

typedef struct kr_gemm kr_gemm;
typedef struct kr_gemm_plan kr_gemm_plan;       /* kernels of one (type, columns, outputs) */
typedef struct kr_gemm_weights kr_gemm_weights; /* one packed chunk */

/* workers: how many threads may run products at the same time. */
kr_status kr_gemm_create(kr_gemm **gemm, uint32_t workers, kr_err *err);
void kr_gemm_destroy(kr_gemm *gemm); /* after its weights; NULL is fine */
/* False on CPUs without BF16 kernels; such weights are then expanded to F32. */
bool kr_gemm_has_bf16(const kr_gemm *gemm);
const char *kr_gemm_library(const kr_gemm *gemm); /* "oneDNN 2.6.3" */

/* The plan for chunks of the given shape, made at first use; type is KR_F32 or KR_BF16 (of weights
 * and rows), outputs <= KR_GEMM_OUTPUTS. Owned by gemm. */
kr_status kr_gemm_plan_for(kr_gemm *gemm, kr_dtype type, uint32_t columns, uint32_t outputs,
                           const kr_gemm_plan **plan, kr_err *err);
uint64_t kr_gemm_plan_bytes(const kr_gemm_plan *plan); /* of one packed chunk */
uint64_t kr_gemm_scratch_bytes(const kr_gemm *gemm);   /* its own allocations so far */

/* Packs matrix rows [outputs][columns] into packed (kr_gemm_plan_bytes, 64-byte aligned, caller's,
 * kept as long as the weights). Safe from several threads as different workers. */
kr_status kr_gemm_pack(kr_gemm *gemm, const kr_gemm_plan *plan, uint32_t worker, const void *rows,
                       void *packed, kr_gemm_weights **weights, kr_err *err);
void kr_gemm_weights_destroy(kr_gemm_weights *weights); /* NULL is fine */

/* out[r * out_stride + o] = sum over columns of x[r][c] * w[o][c], F32 sums; x [rows][columns]. */
void kr_gemm_run(kr_gemm *gemm, const kr_gemm_plan *plan, const kr_gemm_weights *weights, uint32_t worker,
                 const void *x, uint32_t rows, float *out, uint64_t out_stride);

#endif
