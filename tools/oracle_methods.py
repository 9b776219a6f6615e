#!/usr/bin/env python3
"""Makes tests/fixtures/oracle_methods.txt: what the authors' own code answers on inputs that the tests
make again, bit for bit, from a counter (gen below).

Usage: oracle_methods.py FOLDER > tests/fixtures/oracle_methods.txt

FOLDER holds git repositories of the authors, one folder each:
  llm-inference-research  graphcore-research, commit ead9b6a   SparQ: AnnAttention
  STARC                   EPIC-RPI, commit 30d4ce9             cluster_prefill_kv, cluster_heavy_hitter_mask
  MoBA                    MoonshotAI, commit 61e456b           moba_attn_varlen_naive
  SnapKV                  FasterDecoding, commit e216ddc       SnapKVCluster
  H2O                     FMInference, commit ac75c2a          LlamaAttention_heavy_hitter
  Quest                   mit-han-lab, commit 01c1623          local_heavy_hitter_mask
The indexers of DeepSeek-V3.2, GLM-5.x and MiniMax-M3 come from the installed transformers. Their code is
run, never copied: file-level imports that a CPU lacks are left out, classes are executed as they stand.
"""
import math
import os
import subprocess
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import nn


def gen(shape, number):
    """Element i of array `number`: 13 bits of splitmix64, as a multiple of 2^-11 in [-2, 2)."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64) + np.uint64(number << 32)
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    x = ((z >> np.uint64(51)).astype(np.int64) - 4096) / 2048.0
    return torch.tensor(x.reshape(shape), dtype=torch.float32)


def emit(name, values):
    flat = np.asarray(values).reshape(-1)
    if flat.dtype.kind == "f":
        text = " ".join(f"{float(v):.9g}" for v in flat)
    else:
        text = " ".join(str(int(v)) for v in flat)
    print(f"{name} {flat.size} {text}")


def source(folder, path):
    # A work tree or a bare mirror will do.
    git = folder if os.path.exists(os.path.join(folder, "HEAD")) else os.path.join(folder, ".git")
    return subprocess.run(["git", "--git-dir", git, "show", f"HEAD:{path}"], check=True, capture_output=True,
                          text=True).stdout


def definitions(text, *names):
    """The named top-level classes and functions of a source, decorators included."""
    out, keep, held = [], False, []
    for line in text.split("\n"):
        if line and not line[0].isspace() and not line.startswith(")"):
            if line.startswith("@"):
                held.append(line)
                keep = False
                continue
            words = line.replace("(", " ").replace(":", " ").split()
            keep = words[0] in ("def", "class") and words[1] in names
            if keep:
                out += held
            held = []
        if keep:
            out.append(line)
    return "\n".join(out)


def run_definitions(text, names, scope):
    base = {"torch": torch, "nn": nn, "F": F, "math": math, "np": np, "Tensor": torch.Tensor}
    import dataclasses
    import typing

    base.update({k: getattr(typing, k) for k in ("Any", "List", "Optional", "Tuple", "Union", "cast", "Dict")})
    base.update({"dataclass": dataclasses.dataclass, "partial": __import__("functools").partial})
    base.update(scope)
    # A module of its own, so that dataclasses and typing find it.
    module = types.ModuleType("oracle_source")
    module.__dict__.update(base)
    sys.modules["oracle_source"] = module
    exec(compile("from __future__ import annotations\n" + definitions(text, *names), "oracle_source", "exec"),
         module.__dict__)
    return module


def sparq(root):
    heads, kv, d, n = 4, 2, 32, 200
    repo = os.path.join(root, "llm-inference-research")
    causal = run_definitions(source(repo, "llminference/methods/sparse_attention.py"),
                             ("causal_index", "score_to_mask"), {})
    ann = run_definitions(source(repo, "llminference/methods/ann_attention.py"),
                          ("gather", "LowRank", "SparseQ", "Settings", "AnnAttention"),
                          {"sparse_attention": causal, "ScoreSettings": None})
    module = ann.AnnAttention(ann.Settings(k=24, local_k=4, reallocate_to_mean_value=True, score="sparse_q", rank=8),
                              kv, d)
    q = gen((1, heads, 1, d), 1)
    k = gen((n, kv, d), 2).permute(1, 0, 2)[None]
    v = gen((n, kv, d), 3).permute(1, 0, 2)[None]
    out, weights = module(q, k, v, torch.zeros(1, heads, 1, n))
    emit("sparq_output", out.numpy())
    for g in range(kv):
        emit(f"sparq_selected_{g}", (weights[0, g * 2, 0] != 0).nonzero().reshape(-1).numpy())


def starc(root):
    heads, kv, d, n, budget = 4, 2, 32, 201, 64
    module = run_definitions(source(os.path.join(root, "STARC"), "evaluation/starc_attention.py"),
                             ("cluster_heavy_hitter_mask", "cluster_prefill_kv", "batched_kmeans",
                              "cluster_on_every_head"), {})
    q = gen((1, heads, 1, d), 11)
    k = gen((n, kv, d), 12).permute(1, 0, 2)[None]
    v = gen((n, kv, d), 13).permute(1, 0, 2)[None]
    # Stable sort: the reference's argsort does not promise an order inside a cluster.
    plain = torch.Tensor.argsort
    torch.Tensor.argsort = lambda self, dim=-1, descending=False: plain(self, dim=dim, descending=descending,
                                                                        stable=True)
    _, _, order, labels, centroids = module.cluster_prefill_kv(k, v, 64, 16)
    torch.Tensor.argsort = plain
    mask = module.cluster_heavy_hitter_mask(q, centroids, labels, order, budget, n, heads // kv)
    keys, values = (x.repeat_interleave(heads // kv, dim=1) for x in (k, v))
    score = (q @ keys.transpose(-1, -2) / math.sqrt(d)).masked_fill(~mask, float("-inf"))
    emit("starc_output", (torch.softmax(score, -1) @ values).numpy())
    for h in range(heads):
        emit(f"starc_selected_{h}", mask[0, h, 0].nonzero().reshape(-1).numpy())


def moba(root):
    heads, d, n = 4, 16, 150
    module = run_definitions(source(os.path.join(root, "MoBA"), "moba/moba_naive.py"), ("moba_attn_varlen_naive",), {})
    q, k, v = (gen((n, heads, d), s) for s in (21, 22, 23))
    out = module.moba_attn_varlen_naive(q, k, v, torch.tensor([0, n]), n, 16, 3)
    emit("moba_output", out[-40:].numpy())


def snapkv(root):
    heads, d, n = 4, 16, 120
    module = run_definitions(source(os.path.join(root, "SnapKV"), "snapkv/monkeypatch/snapkv_utils.py"),
                             ("SnapKVCluster",), {})
    q, k = (gen((n, heads, d), s).permute(1, 0, 2)[None] for s in (31, 32))
    place = torch.arange(n, dtype=torch.float32)[None, None, :, None].expand(1, heads, n, d)
    for pool in ("avgpool", "maxpool"):
        cluster = module.SnapKVCluster(window_size=8, max_capacity_prompt=40, kernel_size=5, pooling=pool)
        seen = []
        plain = record_topk(seen)
        _, kept = cluster.update_kv(k, q, place, None, 1)
        torch.Tensor.topk = plain
        for h in range(heads):
            if pool == "avgpool":
                emit(f"snapkv_{pool}_{h}", np.sort(kept[0, h, :, 0].numpy().astype(np.int64)))
            else:  # neighbours share a maximum, so ties straddle the cut: the scores tell, the set does not
                emit(f"snapkv_{pool}_score_{h}", seen[0][0, h].numpy())


def h2o(root):
    heads, d, n, steps = 4, 16, 100, 20
    module = run_definitions(source(os.path.join(root, "H2O"), "h2o_hf/utils_hh/modify_llama.py"),
                             ("LlamaAttention_heavy_hitter",),
                             {"LlamaConfig": object, "LlamaRotaryEmbedding": lambda *a, **k: (lambda *b, **c: (0, 0)),
                              "apply_rotary_pos_emb": lambda q, k, *a: (q, k)})
    config = types.SimpleNamespace(hidden_size=heads * d, num_attention_heads=heads, max_position_embeddings=512,
                                   heavy_ratio=0.1, recent_ratio=0.1)
    attention = module.LlamaAttention_heavy_hitter(config)
    width = heads * d

    def part(i):
        return lambda x: x[..., i * width:(i + 1) * width]

    for i, name in enumerate(("q_proj", "k_proj", "v_proj")):
        delattr(attention, name)
        object.__setattr__(attention, name, part(i))
    del attention.o_proj
    object.__setattr__(attention, "o_proj", lambda x: x)
    # The real forward splits hidden_states by its own width; each row carries q, k and v side by side.
    rows = torch.cat([gen((n + steps, width), s) for s in (41, 42, 43)], dim=-1)[None]
    mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
    _, _, past = attention(rows[:, :n], attention_mask=mask, use_cache=True)
    outputs = []
    for t in range(n, n + steps):
        out, _, past = attention(rows[:, t:t + 1], past_key_value=past, use_cache=True)
        outputs.append(out.numpy())
    emit("h2o_output", np.concatenate(outputs))


def quest(root):
    heads, d, n, page, budget = 4, 32, 210, 16, 96
    module = run_definitions(source(os.path.join(root, "Quest"), "evaluation/quest_attention.py"),
                             ("local_heavy_hitter_mask",), {})
    q = gen((heads, d), 51)
    k = gen((n, heads, d), 52)
    bound = torch.empty(1, heads, 1, n)
    for p in range(0, n, page):
        keys = k[p:p + page]
        score = torch.maximum(q * keys.amax(0), q * keys.amin(0)).sum(-1)
        bound[0, :, 0, p:p + page] = score[:, None]
    mask = module.local_heavy_hitter_mask(bound, budget, page)
    for h in range(heads):
        emit(f"quest_pages_{h}", mask[0, h, 0, ::page].nonzero().reshape(-1).numpy())


def fill(parameter, number, scale, offset=0.0):
    with torch.no_grad():
        parameter.copy_(gen(tuple(parameter.shape), number) * scale + offset)


def rotary(n, dims, theta):
    frequency = theta ** (-torch.arange(0, dims, 2, dtype=torch.float64) / dims)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * frequency
    angle = torch.cat([angle, angle], dim=-1)[None]
    return angle.cos().float(), angle.sin().float()


def record_topk(seen):
    plain = torch.Tensor.topk

    def topk(self, *args, **kwargs):
        seen.append(self.clone())
        return plain(self, *args, **kwargs)

    torch.Tensor.topk = topk
    return plain


def dsa(name, cls):
    n, hidden, lora, heads, d, rope, k = 40, 64, 32, 4, 16, 8, 8
    config = types.SimpleNamespace(hidden_size=hidden, index_n_heads=heads, index_head_dim=d, qk_rope_head_dim=rope,
                                   index_topk=k, q_lora_rank=lora)
    indexer = cls(config, 0).float()
    fill(indexer.wq_b.weight, 61, 0.2)
    fill(indexer.wk.weight, 62, 0.2)
    fill(indexer.k_norm.weight, 63, 0.2, 1.0)
    fill(indexer.k_norm.bias, 64, 0.2)
    fill(indexer.weights_proj.weight, 65, 0.2)
    mask = torch.full((n, n), float("-inf")).triu(1)[None]
    seen = []
    plain = record_topk(seen)
    indexer(gen((1, n, hidden), 66), gen((1, n, lora), 67), rotary(n, rope, 10000.0), mask, torch.arange(n)[None])
    torch.Tensor.topk = plain
    emit(f"{name}_score", seen[0][0, -1].numpy())
    order = torch.sort(seen[0][0, -1], descending=True, stable=True).indices[:k]
    emit(f"{name}_selected", np.sort(order.numpy()))


def m3():
    from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLIndexer

    n, hidden, heads, d, block = 100, 64, 2, 32, 16
    config = types.SimpleNamespace(hidden_size=hidden, index_n_heads=heads, index_head_dim=d, index_block_size=block,
                                   index_topk_blocks=3, index_local_blocks=1, rms_norm_eps=1e-6)
    indexer = MiniMaxM3VLIndexer(config, 0).float()
    fill(indexer.q_proj.weight, 71, 0.2)
    fill(indexer.k_proj.weight, 72, 0.2)
    fill(indexer.q_norm.weight, 73, 0.2)
    fill(indexer.k_norm.weight, 74, 0.2)
    seen = []
    plain = record_topk(seen)
    with torch.no_grad():
        index = indexer(gen((1, n, hidden), 75), rotary(n, 16, 5e6), None, torch.arange(n)[None])
    torch.Tensor.topk = plain
    for h in range(heads):
        emit(f"m3_score_{h}", seen[0][0, h, -1].nan_to_num(posinf=1e30).numpy())
        emit(f"m3_selected_{h}", np.sort(index[0, h, -1].numpy()))


def main():
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer
    from transformers.models.glm_moe_dsa.modeling_glm_moe_dsa import GlmMoeDsaIndexer

    root = sys.argv[1]
    print(f"# made by tools/oracle_methods.py; torch {torch.__version__}, transformers {transformers.__version__}")
    print("# name, number of values, values")
    sparq(root)
    starc(root)
    moba(root)
    snapkv(root)
    h2o(root)
    quest(root)
    dsa("deepseek", DeepseekV32Indexer)
    dsa("glm", GlmMoeDsaIndexer)
    m3()


main()
