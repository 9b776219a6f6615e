"""karat's selection on numpy arrays: cffi in ABI mode, no compiler, no copy of the arrays.

Holds one layer's KV cache as float16 [kv_head][token][dim], as inference engines do, lets a method choose for
one query, attends over the choice where the arrays lie, and checks both against numpy.

    KARAT_LIBRARY=build/libkarat.so python3 examples/numpy_select.py [METHOD]
"""

import os
import sys

import numpy
from cffi import FFI

# What is used here of karat/karat.h, karat/selector.h and karat/kernels.h, without their macros.
ffi = FFI()
ffi.cdef("""
typedef int karat_status;
typedef int karat_dtype;
typedef struct karat_error { karat_status status; char text[256]; } karat_error;
const char *karat_version(void);

typedef struct karat_selector karat_selector;
typedef struct karat_sequence karat_sequence;
typedef struct {
    uint32_t struct_size; karat_dtype dtype; const char *method;
    uint32_t layers, heads, kv_heads, key_dim, value_dim, latent; float softmax_scale; uint32_t threads;
    uint64_t tokens_max, memory_bytes; uint32_t sequences_max, budget, unit, mode, dense_layers; float threshold;
    uint32_t parameter[8]; uint64_t seed; const uint32_t *index_owner;
} karat_selector_options;
typedef struct {
    uint32_t struct_size, dense, lists, unit_tokens, units_max, index_owner, index_query_bytes, index_key_bytes,
        needs_queries, page_tokens;
    uint64_t page_bytes, page_kv_bytes, page_index_bytes, record_bytes;
} karat_selector_plan;
typedef struct {
    uint32_t struct_size, prompt; uint64_t count;
    const void *key; uint64_t key_token_stride, key_head_stride;
    const void *value; uint64_t value_token_stride, value_head_stride;
    const void *index_key; const float *query; const void *index_query; float *output;
} karat_rows;
typedef struct {
    uint32_t struct_size, lists, stride, reserved; uint32_t *count, *unit; uint64_t nan_scores;
} karat_lists;
karat_status karat_selector_create(const karat_selector_options *, karat_selector **, karat_error *);
void karat_selector_destroy(karat_selector *);
karat_status karat_selector_plan_of(const karat_selector *, uint32_t, karat_selector_plan *, karat_error *);
karat_status karat_sequence_open(karat_selector *, uint64_t, karat_sequence **, karat_error *);
karat_status karat_sequence_append(karat_sequence *, uint32_t, const karat_rows *, karat_error *);
karat_status karat_sequence_end_prompt(karat_sequence *, karat_error *);
karat_status karat_sequence_select(karat_sequence *, uint32_t, const float *, const void *, karat_lists *,
                                   karat_error *);

typedef struct {
    uint32_t struct_size; karat_dtype dtype; uint32_t heads, kv_heads, key_dim, value_dim; float softmax_scale;
    uint32_t lists, unit_tokens, stride; uint64_t tokens;
    const void *key; uint64_t key_token_stride, key_head_stride;
    const void *value; uint64_t value_token_stride, value_head_stride;
    const float *query; const uint32_t *count, *unit; float *output;
} karat_list_attention;
karat_status karat_attend_lists(const karat_list_attention *, karat_error *);
karat_status karat_topk(const float *, uint64_t, uint32_t, uint32_t *, uint32_t *, uint64_t *, void *, karat_error *);
""")
F16 = 1
HEADS, KV_HEADS, DIM, TOKENS, BUDGET = 8, 2, 64, 4096, 512
karat = ffi.dlopen(os.environ.get("KARAT_LIBRARY", "libkarat.so.0"))
error = ffi.new("karat_error *")


def must(status):
    if status != 0:
        sys.exit("numpy_select.py: " + ffi.string(error.text).decode())


def struct(name, **fields):
    """A struct that says its own size."""
    s = ffi.new(name + " *", fields)
    s.struct_size = ffi.sizeof(name)
    return s


def at(array, kind):
    """The array's memory; the array must stay alive during the call."""
    return ffi.cast(kind + " *", array.ctypes.data)


def select(method, key, query):
    """Plan and units [list][...] that the method chooses for a query at the last token of key."""
    name = ffi.new("char[]", method.encode())
    options = struct("karat_selector_options", dtype=F16, method=name, heads=HEADS, kv_heads=KV_HEADS, key_dim=DIM,
                     tokens_max=TOKENS, threads=2, budget=BUDGET)
    selector, sequence = ffi.new("karat_selector **"), ffi.new("karat_sequence **")
    must(karat.karat_selector_create(options, selector, error))
    plan = struct("karat_selector_plan")
    must(karat.karat_selector_plan_of(selector[0], 0, plan, error))
    must(karat.karat_sequence_open(selector[0], 0, sequence, error))
    prompt = struct("karat_rows", prompt=1, count=TOKENS, key=at(key, "void"), key_token_stride=DIM,
                    key_head_stride=TOKENS * DIM)
    must(karat.karat_sequence_append(sequence[0], 0, prompt, error))
    must(karat.karat_sequence_end_prompt(sequence[0], error))
    count = numpy.zeros(plan.lists, numpy.uint32)
    unit = numpy.zeros((plan.lists, plan.units_max), numpy.uint32)
    lists = struct("karat_lists", lists=plan.lists, stride=plan.units_max, count=at(count, "uint32_t"),
                   unit=at(unit, "uint32_t"))
    must(karat.karat_sequence_select(sequence[0], 0, at(query, "float"), ffi.NULL, lists, error))
    karat.karat_selector_destroy(selector[0])
    return plan, count, unit


def attend(key, value, query, plan, count, unit):
    output = numpy.zeros((HEADS, DIM), numpy.float32)
    attention = struct("karat_list_attention", dtype=F16, heads=HEADS, kv_heads=KV_HEADS, key_dim=DIM, value_dim=DIM,
                       lists=plan.lists, unit_tokens=plan.unit_tokens, stride=unit.shape[1], tokens=TOKENS,
                       key=at(key, "void"), key_token_stride=DIM, key_head_stride=TOKENS * DIM,
                       value=at(value, "void"), value_token_stride=DIM, value_head_stride=TOKENS * DIM,
                       query=at(query, "float"), count=at(count, "uint32_t"), unit=at(unit, "uint32_t"),
                       output=at(output, "float"))
    must(karat.karat_attend_lists(attention, error))
    return output


def main():
    method = sys.argv[1] if len(sys.argv) > 1 else "quest"
    random = numpy.random.default_rng(7)
    key = random.standard_normal((KV_HEADS, TOKENS, DIM))
    for t in range(1, TOKENS):  # keys drift, as in text
        key[:, t] = 0.8 * key[:, t - 1] + 0.6 * key[:, t]
    key = key.astype(numpy.float16)
    value = random.standard_normal((KV_HEADS, TOKENS, DIM)).astype(numpy.float16)
    group = numpy.arange(HEADS) * KV_HEADS // HEADS
    asked = (numpy.arange(HEADS) + 1) * TOKENS // 10  # each head looks for one token's key
    query = (1.5 * key[group, asked] + random.standard_normal((HEADS, DIM))).astype(numpy.float32)

    score = numpy.einsum("hd,htd->ht", query.astype(numpy.float64), key[group].astype(numpy.float64)) / DIM**0.5
    mass = numpy.exp(score - score.max(axis=1, keepdims=True))
    mass /= mass.sum(axis=1, keepdims=True)

    plan, count, unit = select(method, key, query)
    output = attend(key, value, query, plan, count, unit)
    kept = numpy.zeros((HEADS, TOKENS), bool)
    for head in range(HEADS):
        chosen = head * plan.lists // HEADS
        for u in unit[chosen, : count[chosen]]:
            kept[head, u * plan.unit_tokens : (u + 1) * plan.unit_tokens] = True
    weight = numpy.where(kept, mass, 0)
    weight /= weight.sum(axis=1, keepdims=True)
    expected = numpy.einsum("ht,htd->hd", weight, value[group].astype(numpy.float64))
    wrong = abs(output - expected).max()

    best = numpy.zeros(BUDGET, numpy.uint32)
    found = ffi.new("uint32_t *")
    row = score[0].astype(numpy.float32)
    must(karat.karat_topk(at(row, "float"), TOKENS, BUDGET, at(best, "uint32_t"), found, ffi.NULL, ffi.NULL, error))
    sorted_best = numpy.sort(numpy.argsort(-row, kind="stable")[:BUDGET])

    print(f"karat {ffi.string(karat.karat_version()).decode()}, {method}: {kept.sum() / HEADS:.0f} of {TOKENS} tokens, "
          f"{100 * numpy.where(kept, mass, 0).sum() / HEADS:.1f} % of the attention mass; "
          f"attention over them differs from numpy's by {wrong:.1e}; "
          f"top-{BUDGET} {'is' if (best == sorted_best).all() else 'IS NOT'} numpy's")
    sys.exit(0 if wrong < 1e-4 and (best == sorted_best).all() else 1)


if __name__ == "__main__":
    main()
