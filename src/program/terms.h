/* Inside program/: the cost terms of one op, and the growing table in which ops share them. */
#ifndef KR_PROGRAM_TERMS_H
#define KR_PROGRAM_TERMS_H

#include "program/program.h"

/* Terms of kind in a layer; layer is ignored for EMBED, HEAD and SAMPLE. program has model,
 * parallel, method, config, shape and plan. */
kr_cost_terms kr_op_terms(const kr_program *program, kr_op_kind kind, uint32_t layer);

/* Fills order and order_count of a program whose ops are complete. */
kr_status kr_program_order(kr_program *program, kr_arena *arena, kr_err *err);

#endif
