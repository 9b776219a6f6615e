#!/usr/bin/env python3
"""Measured kernel times of an accelerator for karat sim, from the package aiconfigurator-core.

    pip download --no-deps aiconfigurator-core
    pip install pyarrow numpy
    tools/import_aiconfigurator.py aiconfigurator_core-*.whl --out h200.tables.json
    karat sim --tables h200.tables.json ...
    tools/import_aiconfigurator.py aiconfigurator_core-*.whl --update data/devices/h200.json

--out writes the measured grids that decode needs (src/device/tables.h has the form); they are not part
of this tree. --update fits the formulas of a device descriptor to the same tables, least squares of the
relative error, and writes coefficients and errors into it. --check compares a descriptor with a table of
whole attention blocks that is not among those fitted.

Smoothing, of tables and before fits: the time with m rows is the least measured with m or more rows,
since a batch can be padded; of repeated measurements the least counts. Nothing else is changed.

The package is Apache-2.0 (NVIDIA); written against version 0.12.0. Its prefill (context) tables are
not read: prefill is another pool's in karat sim."""

import argparse
import io
import json
import sys
import zipfile

import numpy as np
import pyarrow.parquet as pq

ROOT = "aiconfigurator_core/systems/data"
DEVICES = {"h200_sxm": "H200", "h100_sxm": "H100"}
GEMM = "gemm/sglang/0.5.14/gemm"
BMM = "mla_bmm/sglang/0.5.14/mla_bmm"
MLA = "mla/sglang/0.5.14/generation_mla"
MLP = "mlp/sglang/0.5.6.post2/wideep_generation_mlp"
MOE_WIDE = "moe/sglang/0.5.10/wideep_generation_moe"
MOE = "moe/vllm/0.24.0/moe"
DSA = "sparse_attention/vllm/0.24.0/dsa_generation_module"
MSA = "msa/vllm/0.24.0/msa_generation_module"
MLA_WIDE = "mla/sglang/0.5.10/wideep_generation_mla"
DEEPEP = "comm/sglang/0.5.6.post2/wideep_deepep_ll"
REDUCE = "comm/sglang/0.5.14/custom_allreduce"
GEMM_TYPES = {
    "fp8_block": ("e4m3", "sglang 0.5.14 DeepGEMM, FP8 in blocks"),
    "bfloat16": ("bf16", "sglang 0.5.14 torch linear, BF16"),
}
# hidden, width, experts, active, type in the package, type here, models
SHAPES = [
    (6144, 2048, 256, 8, "bfloat16", "bf16", ("GLM-5.2", "GLM-5")),
    (6144, 3072, 128, 4, "bfloat16", "bf16", ("MiniMax-M3",)),
]


class Tables:
    def __init__(self, wheel, system):
        self.zip = zipfile.ZipFile(wheel)
        self.system = system
        self.version = wheel.split("/")[-1].split("-")[1]

    def read(self, name):
        data = self.zip.read(f"{ROOT}/{self.system}/{name}_perf.parquet")
        columns = pq.read_table(io.BytesIO(data), use_threads=False).to_pydict()
        return [dict(zip(columns, row)) for row in zip(*columns.values())]

    def source(self, name):
        return f"aiconfigurator-core {self.version}, systems/data/{self.system}/{name}_perf.parquet"


def grid(rows, axes, key, us, smooth=True):
    """{axis values: least us}, smoothed along the axis "rows" or "expert_rows" where there is one."""
    points = {}
    for r in rows:
        at = key(r)
        if all(x > 0 for x in at):
            points[at] = min(points.get(at, float("inf")), us(r))
    padded = [i for i, a in enumerate(axes) if a in ("rows", "expert_rows")]
    if padded and smooth:
        p = padded[0]
        for at in sorted(points, key=lambda a: -a[p]):
            rest = at[:p] + at[p + 1 :]
            more = [b for b in by_rest(points, p)[rest] if b[p] > at[p]]
            if more:
                points[at] = min(points[at], points[min(more, key=lambda b: b[p])])
        by_rest.cache = None
    return points


def by_rest(points, p):
    if getattr(by_rest, "cache", None) is None:
        by_rest.cache = {}
        for at in points:
            by_rest.cache.setdefault(at[:p] + at[p + 1 :], []).append(at)
    return by_rest.cache


def table(op, kernel, axes, points, **of):
    """The form of src/device/tables.h. Holes inside the grid are null, at the begin of a line the line's
    first time (a kernel is not faster than on fewer rows)."""
    at = [sorted({p[i] for p in points}) for i in range(len(axes))]
    us = []

    def walk(prefix):
        if len(prefix) == len(axes) - 1:
            line = [points.get(prefix + (x,)) for x in at[-1]]
            if all(x is None for x in line):
                sys.exit(f"{op}, {kernel}: nothing measured at {prefix}")
            first = next(x for x in line if x is not None)
            if line[0] is None:
                line[0] = first
            us.extend(None if x is None else round(x, 3) for x in line)
            return
        for x in at[len(prefix)]:
            walk(prefix + (x,))

    walk(())
    return {
        "op": op,
        "kernel": kernel,
        **of,
        "axes": [{"of": a, "at": v} for a, v in zip(axes, at)],
        "us": us,
    }


def matrix_points(t, kind, smooth=True):
    rows = [
        r
        for r in t.read(GEMM)
        if r["gemm_dtype"] == kind and r["k"] <= 16384 and r["n"] >= 128 and r["k"] >= 128
    ]
    return grid(
        rows, ("in", "out", "rows"), lambda r: (r["k"], r["n"], r["m"]), lambda r: r["latency"] * 1e3, smooth
    )


def wide_experts(t):
    rows = [r for r in t.read(MOE_WIDE) if r["distribution"] == "uniform"]
    return grid(
        rows,
        ("count", "expert_rows"),
        lambda r: (r["num_experts"] // r["moe_ep_size"], r["num_tokens"] * r["topk"] / r["moe_ep_size"]),
        lambda r: r["latency"] * 1e3,
    )


def experts(t, hidden, width, count, active, kind):
    rows = [
        r
        for r in t.read(MOE)
        if (r["hidden_size"], r["inter_size"], r["num_experts"], r["topk"], r["moe_dtype"])
        == (hidden, width, count, active, kind)
        and r["moe_tp_size"] == 1
        and r["distribution"] == "balanced"
        and r["moe_ep_size"] <= 64
        and r["num_tokens"] * active >= r["moe_ep_size"]
    ]
    return grid(
        rows,
        ("count", "expert_rows"),
        lambda r: (count // r["moe_ep_size"], r["num_tokens"] * active / r["moe_ep_size"]),
        lambda r: r["latency"] * 1e3,
    )


def mla(t):
    rows = [r for r in t.read(MLA) if r["kv_cache_dtype"] == "bfloat16"]
    return grid(
        rows,
        ("count", "rows", "context"),
        lambda r: (r["num_heads"], r["batch_size"], r["isl"] + r["step"] - 1),
        lambda r: r["latency"] * 1e3,
    )


def deepep(t, what):
    return grid(
        t.read(DEEPEP),
        ("ranks", "rows"),
        lambda r: (8 * r["node_num"], r["num_token"]),
        lambda r: r[f"{what}_avg_t_us"],
    )


def all_tables(t):
    out = []
    for kind, (math, kernel) in GEMM_TYPES.items():
        out.append(table("matrix", kernel, ("in", "out", "rows"), matrix_points(t, kind), math=math))
    for op, name in (("absorb", "mla_gen_pre"), ("v_up", "mla_gen_post")):
        rows = [r for r in t.read(BMM) if r["op_name"] == name and r["bmm_dtype"] == "bfloat16"]
        points = grid(
            rows, ("count", "rows"), lambda r: (r["num_heads"], r["num_tokens"]), lambda r: r["latency"] * 1e3
        )
        of = {"in": 128, "out": 512} if op == "absorb" else {"in": 512, "out": 128}
        out.append(table(op, "sglang 0.5.14 batched product, BF16", ("count", "rows"), points, **of))
    out.append(
        table(
            "attend",
            "sglang 0.5.14 flash_attention, latent, BF16",
            ("count", "rows", "context"),
            mla(t),
            method="dense",
            math="bf16",
            **{"in": 576},
            out=512,
        )
    )
    out.append(
        table(
            "experts",
            "sglang 0.5.10 DeepGEMM masked, balanced",
            ("count", "expert_rows"),
            wide_experts(t),
            math="e4m3",
            **{"in": 7168},
            out=2048,
        )
    )
    for hidden, width, count, active, kind, math, _ in SHAPES:
        out.append(
            table(
                "experts",
                "vllm 0.24.0 triton, balanced",
                ("count", "expert_rows"),
                experts(t, hidden, width, count, active, kind),
                math=math,
                **{"in": hidden},
                out=width,
            )
        )
    for op in ("dispatch", "combine"):
        out.append(
            table(op, "DeepEP low latency, top-8", ("ranks", "rows"), deepep(t, op), **{"in": 7168}, out=8)
        )
    for hidden in (7168, 6144):
        rows = [r for r in t.read(REDUCE) if r["allreduce_dtype"] == "bfloat16"] or t.read(REDUCE)
        points = grid(
            rows,
            ("ranks", "rows"),
            lambda r: (r["num_gpus"], r["message_size"] / hidden),
            lambda r: r["latency"] * 1e3,
        )
        out.append(
            table("reduce", "sglang 0.5.14 custom all-reduce", ("ranks", "rows"), points, **{"in": hidden})
        )
    return {
        "karat_tables": 1,
        "device": DEVICES[t.system],
        "source": f"aiconfigurator-core {t.version}, systems/data/{t.system}, Apache-2.0",
        "smoothing": "the time with m rows is the least measured with m or more rows",
        "tables": out,
    }


# ---- fits ----


def errors(predicted, y):
    e = np.abs(predicted / y - 1)
    return {"median_error": round(float(np.median(e)), 3), "p90_error": round(float(np.percentile(e, 90)), 3)}


def linear(columns, y):
    """Coefficients >= 0 of least squares of the relative error."""
    x = np.stack([np.asarray(c, float) for c in columns], 1)
    y = np.asarray(y, float)
    use = list(range(x.shape[1]))
    while True:
        c = np.zeros(x.shape[1])
        c[use] = np.linalg.lstsq(x[:, use] / y[:, None], np.ones(len(y)), rcond=None)[0]
        if (c >= 0).all():
            return c, errors(x @ c, y)
        use.remove(int(np.argmin(c)))


def fit_matrix(t, kind):
    points = [(p, us) for p, us in matrix_points(t, kind).items() if p[2] <= 512 and p[1] <= 16384]
    size = 1 if kind == "fp8_block" else 2
    k, n, m = (np.array([p[i] for p, _ in points], float) for i in range(3))
    y = np.array([us for _, us in points])
    flops, bytes_, best = 2 * k * n * m, size * k * n + m * (size * k + 2 * n), None

    def predict(c):
        return c[0] + np.maximum(np.maximum(flops / c[1], bytes_ / c[2]) * 1e6, k * c[3] * 1e-6)

    c = [4.0, 7e14, 3.3e12, 600.0]  # us, FLOP/s, B/s, ps per element of depth
    step = 1.3
    while step > 1.002:
        moved = False
        for i in range(4):
            for f in (step, 1 / step):
                tried = c[:i] + [c[i] * f] + c[i + 1 :]
                e = float(np.mean((predict(tried) / y - 1) ** 2))
                if best is None or e < best:
                    best, c, moved = e, tried, True
        step = step if moved else step**0.5
    return {
        "math": GEMM_TYPES[kind][0],
        "kernel": GEMM_TYPES[kind][1],
        "t0_us": round(c[0], 2),
        "flops": float(f"{c[1]:.3g}"),
        "bytes_per_s": float(f"{c[2]:.3g}"),
        "depth_ps": round(c[3], 1),
        "rows_max": 512,
        **errors(predict(c), y),
        "source": t.source(GEMM) + ", own least-relative-squares fit, up to 512 rows, 128 to 16,384 a side",
    }


def fit_small(t):
    """Time of a small kernel: what a shared expert's FFN takes above its two products, by two of them."""
    gemm = matrix_points(t, "fp8_block", smooth=False)
    rest = [
        (r["avg_ms"] * 1e3 - gemm[(7168, 4096, m)] - gemm[(2048, 7168, m)]) / 2
        for r in t.read(MLP)
        for m in [r["num_token"]]
        if m <= 512 and (7168, 4096, m) in gemm
    ]
    return {
        "value": round(float(np.median(rest)) * 1e-6, 8),
        "source": t.source(MLP)
        + f": above the products of {GEMM}, by the two small kernels between; median of "
        f"{len(rest)} batches of 1 to 512 rows, {min(rest):.1f} to {max(rest):.1f} us",
    }


def curve(op, kernel, t, name, c, e, note, **more):
    out = {"op": op, **more, "kernel": kernel}
    for key, value in c.items():
        out[key] = float(f"{value:.4g}")
    return {
        **out,
        **e,
        "provenance": "interpolated",
        "source": t.source(name) + ", own least-relative-squares fit" + note,
    }


def fit_dense(t):
    out = []
    for heads in (128, 64, 32, 16):
        p = [(b, s, us) for (h, b, s), us in mla(t).items() if h == heads and b >= 4]
        b, s, y = (np.array([q[i] for q in p], float) for i in range(3))
        c, e = linear([np.ones(len(p)), b, b * s], y)
        out.append(
            curve(
                "attend",
                "sglang 0.5.14 flash_attention, latent, BF16",
                t,
                MLA,
                {"t0_us": c[0], "per_row_us": c[1], "per_attended_ps": c[2] * 1e6},
                e,
                "; 4 or more rows",
                method="dense",
                key_width=576,
                heads=heads,
                rows_max=1024,
                context_max=33554432,
            )
        )
    return out


def fit_sparse(t, model, kind, heads, models):
    """Score and attend of the indexed module: slopes by context above and below what is attended."""
    rows = [
        r
        for r in t.read(DSA)
        if r["model"] == model
        and r["kv_cache_dtype"] == "bfloat16"
        and r["gemm_type"] == kind
        and r["num_heads"] == heads
        and r["batch_size"] >= 32
    ]
    b, s, y = (np.array([r[k] for r in rows], float) for k in ("batch_size", "step", "latency"))
    c, e = linear([np.ones(len(b)), b, b * np.minimum(s, 2048), b * np.maximum(s - 2048, 0)], y * 1e3)
    kernel = f"vllm 0.24.0 dsa_generation_module, {kind}, {heads} heads, BF16 KV"
    note = "; t0 + b*B + c*B*min(S,2048) + d*B*max(S-2048,0) over B >= 32: "
    out = []
    for name in models:
        out.append(
            curve(
                "score",
                kernel,
                t,
                DSA,
                {"t0_us": 3, "per_context_ps": c[3] * 1e6},
                e,
                note + "d; t0 is fixed_s",
                model=name,
                rows_max=1024,
                context_max=float(max(b * s)),
            )
        )
        out.append(
            curve(
                "attend",
                kernel,
                t,
                DSA,
                {"t0_us": 12, "per_attended_ps": c[2] * 1e6},
                e,
                note + "c; t0 as of the dense kernel",
                model=name,
                rows_max=1024,
            )
        )
    return out


def fit_msa(t):
    rows = [
        r
        for r in t.read(MSA)
        if r["kv_cache_dtype"] == "bfloat16"
        and r["gemm_type"] == "bfloat16"
        and r["num_heads"] == 64
        and r["batch_size"] >= 32
    ]
    b, s, y = (np.array([r[k] for r in rows], float) for k in ("batch_size", "step", "latency"))
    c, e = linear([np.ones(len(b)), b, b * np.minimum(s, 2048), b * np.maximum(s - 2048, 0)], y * 1e3)
    kernel = "vllm 0.24.0 msa_generation_module, bf16, 64 heads"
    note = "; t0 + b*B + c*B*min(S,2048) + d*B*max(S-2048,0) over B >= 32: "
    return [
        curve(
            "score",
            kernel,
            t,
            MSA,
            {"t0_us": 3, "per_context_ps": c[3] * 1e6},
            e,
            note + "d; t0 is fixed_s",
            model="MiniMax-M3",
            rows_max=1024,
            context_max=float(max(b * s)),
        ),
        curve(
            "attend",
            kernel,
            t,
            MSA,
            {"t0_us": 3, "per_attended_ps": c[2] * 1e6},
            e,
            note + "c",
            model="MiniMax-M3",
            rows_max=1024,
        ),
    ]


def fit_experts(t):
    out = []

    def one(points, kernel, name, model, rows, note):
        p = [(n, r, us) for (n, r), us in points.items() if n >= 2 and r <= rows * n]
        n, r, y = (np.array([q[i] for q in p], float) for i in range(3))
        c, e = linear([np.ones(len(p)), np.minimum(n, r), r], y)
        out.append(
            curve(
                "experts",
                kernel,
                t,
                name,
                {"t0_us": c[0], "per_expert_us": c[1], "per_expert_row_us": c[2]},
                e,
                "; 2 or more experts a rank" + note,
                model=model,
            )
        )

    one(wide_experts(t), "sglang 0.5.10 DeepGEMM masked, FP8, balanced", MOE_WIDE, "DeepSeek-V3.2", 1e9, "")
    for hidden, width, count, active, kind, _, models in SHAPES:
        for model in models:
            one(
                experts(t, hidden, width, count, active, kind),
                "vllm 0.24.0 triton, BF16, balanced",
                MOE,
                model,
                128,
                ", up to 128 rows an expert",
            )
    return out


def fit_exchange(t):
    share = (
        "part of the time in the compute units: 0.06 of 0.167 ms with 128 rows on 64 ranks, "
        "lm-sys/lm-sys.github.io:blog/2025-05-05-large-scale-ep.md (unit test of dispatch)"
    )
    out = []
    for op, note in (("dispatch", share), ("combine", share + ", taken to be combine's too")):
        for ranks in (8, 16, 32, 64):
            p = [(r, us) for (n, r), us in deepep(t, op).items() if n == ranks]
            r, y = (np.array([q[i] for q in p], float) for i in range(2))
            c, e = linear([np.ones(len(p)), r], y)
            out.append(
                curve(
                    op,
                    "DeepEP low latency, hidden 7168, top-8",
                    t,
                    DEEPEP,
                    {"t0_us": c[0], "per_row_us": c[1]},
                    e,
                    "; " + note,
                    ranks=ranks,
                    rows_max=2048,
                    compute_share=0.36,
                )
            )
    return out


def update(t, path):
    with open(path) as f:
        device = json.load(f)
    device["kernels"] = {"small_s": fit_small(t), "matrix": [fit_matrix(t, kind) for kind in GEMM_TYPES]}
    device["curves"] = (
        fit_dense(t)
        + fit_sparse(t, "deepseek-ai/DeepSeek-V3.2", "fp8_block", 128, ["DeepSeek-V3.2"])
        + fit_sparse(t, "zai-org/GLM-5", "bfloat16", 64, ["GLM-5.2", "GLM-5"])
        + fit_msa(t)
        + fit_experts(t)
        + fit_exchange(t)
    )
    with open(path, "w") as f:
        json.dump(device, f, indent=2)
        f.write("\n")


def check(t, path):
    """A descriptor against a table that no fit saw: SGLang's whole attention block (query up-projection,
    absorption, attention, value and output projections, with their norms, rotary and quantisation)."""
    with open(path) as f:
        device = json.load(f)
    matrix = {m["math"]: m for m in device["kernels"]["matrix"]}
    small = device["kernels"]["small_s"]["value"] * 1e6
    attend = next(c for c in device["curves"] if c["op"] == "attend" and c.get("heads") == 128)

    def product(k, n, m, math, count=1):
        f, size = matrix[math], {"e4m3": 1, "bf16": 2}[math]
        flops, moved = 2 * count * k * n * m, count * (size * k * n + m * (size * k + 2 * n))
        return f["t0_us"] + max(
            flops / f["flops"] * 1e6, moved / f["bytes_per_s"] * 1e6, f["depth_ps"] * k * 1e-6
        )

    errors_ = {"all": [], "contexts of 512 and more": []}
    for r in t.read(MLA_WIDE):
        if r["num_heads"] != 128:
            continue
        rows, context = r["batch_size"], r["isl"]
        us = product(1536, 24576, rows, "e4m3") + product(16384, 7168, rows, "e4m3")
        us += product(128, 512, rows, "bf16", 128) + product(512, 128, rows, "bf16", 128)
        us += (
            attend["t0_us"] + attend["per_row_us"] * rows + attend["per_attended_ps"] * 1e-6 * rows * context
        )
        us += 5 * small + 3  # two quantisations, two norms, rotary; the store of the new row
        e = us / (r["latency"] * 1e3) - 1
        errors_["all"].append(e)
        if context >= 512:
            errors_["contexts of 512 and more"].append(e)
    for name, e in errors_.items():
        median, p90 = np.median(np.abs(e)), np.percentile(np.abs(e), 90)
        print(
            f"{t.system}, attention block, {name}: {len(e)} points, error median {100 * median:.1f} %, "
            f"p90 {100 * p90:.1f} %, bias {100 * np.mean(e):+.1f} %"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel")
    parser.add_argument("--system", choices=DEVICES, default="h200_sxm")
    parser.add_argument("--out", metavar="FILE", help="write measured grids")
    parser.add_argument("--update", metavar="DESCRIPTOR", help="fit formulas into a descriptor")
    parser.add_argument(
        "--check", metavar="DESCRIPTOR", help="compare a descriptor with a block that no fit saw"
    )
    args = parser.parse_args()
    if args.out is None and args.update is None and args.check is None:
        parser.error("--out, --update or --check says what to do")
    t = Tables(args.wheel, args.system)
    if args.out is not None:
        with open(args.out, "w") as f:
            json.dump(all_tables(t), f)
    if args.update is not None:
        update(t, args.update)
    if args.check is not None:
        check(t, args.check)


if __name__ == "__main__":
    main()
