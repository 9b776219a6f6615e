#!/usr/bin/env python3
"""Writes tests/fixtures/learned: tiny random checkpoints of the models whose retrieval is learned, with
the logits and selections of an implementation that is not karat's.

    python3 tools/make_learned_models.py OUT [NAME...]

Needs torch, transformers (made with 5.24), tokenizers. Everything is seeded.

In each folder: config.json, model.safetensors and the tokenizer as transformers saves them; prompt.json
{ids, prefill: how many of them are a prompt, cases: [{mode, budget, threshold, rows: the positions whose
logits are kept, selected: [[layer, position, list, units...]]}]}; logits.f32: float32 little endian, the
rows [vocab] of the cases, each after reading ids[0..row], all ids teacher-forced.

The oracle computes in F32 from the stored weights. What it adds to transformers' own modules is said
where it is added: karat keeps index queries and keys in the narrow types of the papers, so the oracle
rounds them likewise; else a selection near a tie could differ for no fault of either side.
"""

import copy
import json
import os
import re
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from transformers import DeepseekV32Config, GlmMoeDsaConfig, Qwen3Config
from transformers.models.deepseek_v32 import modeling_deepseek_v32
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa
from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl
from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
from transformers.models.qwen3 import modeling_qwen3

import make_tiny_models as tiny

CONTEXT = 192
PREFILL = 128


def tokenizer():
    tok = PreTrainedTokenizerFast(
        tokenizer_object=tiny.byte_level(tiny.IM, r"\p{N}", nfc=True),
        clean_up_tokenization_spaces=False,
        eos_token="<|im_end|>",
    )
    tok.chat_template = tiny.CHATML.replace(tiny.DEFAULT, "")
    return tok


def randomise(model, gemma=False):
    """Norms, biases and index projections too: their initial values would hide mistakes."""
    g = torch.Generator().manual_seed(20261130)
    for name, p in sorted(model.named_parameters()):
        r = torch.randn(p.shape, generator=g)
        if "norm" in name and not name.endswith("bias"):
            p.data = 0.3 * r + (0.0 if gemma else 1.0)
        elif "embed" in name or "lm_head" in name or name.endswith("bias"):
            p.data = 0.5 * r
        else:
            p.data = r * 1.4 / p.shape[-1] ** 0.5


def released_minimax(weights):
    """Names and shapes of MiniMax-M3's release, which transformers fuses when it loads."""
    renamed = {}
    for name, w in weights.items():
        name = re.sub(
            r"^model\.", "language_model.model.", re.sub(r"^lm_head", "language_model.lm_head", name)
        )
        name = re.sub(r"indexer\.([qk])_(proj|norm)", r"index_\1_\2", name)
        name = name.replace("mlp.gate.e_score", "block_sparse_moe.e_score")
        name = re.sub(r"mlp\.(gate|experts|shared_experts)\.", r"block_sparse_moe.\1.", name)
        if name.endswith("gate_up_proj.weight"):
            for part, half in zip(("gate_proj", "up_proj"), w.chunk(2, 0)):
                renamed[name.replace("gate_up_proj", part)] = half.contiguous()
        elif "experts.gate_up_proj" in name or "experts.down_proj" in name and w.dim() == 3:
            for e in range(w.shape[0]):
                parts = zip(("w1", "w3"), w[e].chunk(2, 0)) if "gate_up" in name else [("w2", w[e])]
                for part, half in parts:
                    renamed[name.rsplit(".", 1)[0] + ".%d.%s.weight" % (e, part)] = half.contiguous()
        else:
            renamed[name] = w
    return renamed


def store(model, tok, out):
    """Saves in BF16 and leaves the model in F32 with the weights that were saved. Its tables of rotary
    frequencies are not weights and stay as they are."""
    for p in model.parameters():
        p.data = p.data.bfloat16().float()
    model.tie_weights()
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    tok.save_pretrained(out)
    if model.config.model_type == "minimax_m3_vl_text":
        path = os.path.join(out, "model.safetensors")
        save_file(released_minimax(load_file(path)), path, metadata=dict(format="pt"))


def save(out, ids, cases, logits):
    """cases: dicts; logits: one [rows][vocab] tensor each."""
    torch.cat(logits).numpy().astype("<f4").tofile(os.path.join(out, "logits.f32"))
    with open(os.path.join(out, "prompt.json"), "w") as f:
        json.dump(dict(ids=ids, prefill=PREFILL, cases=cases), f, separators=(",", ":"))
        f.write("\n")
    print(
        out,
        "weights",
        os.path.getsize(os.path.join(out, "model.safetensors")),
        "spread",
        logits[0].std().item(),
    )


def some_ids(vocab, count=CONTEXT):
    g = torch.Generator().manual_seed(7)
    return torch.randint(3, vocab, (count,), generator=g).tolist()


# ---- SeerAttention-R: gates on Qwen3 ----

SEER = dict(block=16, dim=16, budget=48, threshold=0.09)


class SeerGate(torch.nn.Module):
    """The gate by the paper's formulas, names and shapes by microsoft/SeerAttention."""

    def __init__(self, config):
        super().__init__()
        kv, group, d = (
            config.num_key_value_heads,
            config.num_attention_heads // config.num_key_value_heads,
            config.head_dim,
        )
        self.attngate_linear_q = torch.nn.Module()
        self.attngate_linear_q.weight = torch.nn.Parameter(torch.empty(kv, group, d, SEER["dim"]))
        self.attngate_linear_k = torch.nn.Module()
        self.attngate_linear_k.weight = torch.nn.Parameter(torch.empty(kv, 3 * d, SEER["dim"]))
        self.attngate_qnorm = modeling_qwen3.Qwen3RMSNorm(SEER["dim"], 1e-6)
        self.attngate_knorm = modeling_qwen3.Qwen3RMSNorm(SEER["dim"], 1e-6)
        self.theta = config.rope_parameters["rope_theta"]

    def rotate(self, x, position):
        half = SEER["dim"] // 2
        angle = position[:, None].double() * self.theta ** (-torch.arange(half).double() / half)
        cos, sin = (t.float()[:, None, :] for t in (angle.cos(), angle.sin()))
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def scores(self, q, k, count):
        """Softmax over the blocks of count tokens; q [kv][group][d] of the last one, k [count][kv][d]."""
        whole, blocks = count // SEER["block"], -(-count // SEER["block"])
        pooled = k[: whole * SEER["block"]].reshape(whole, SEER["block"], *k.shape[1:])
        pooled = torch.cat((pooled.amax(1), pooled.amin(1), pooled.mean(1)), -1)
        keys = torch.einsum("bki,kio->bko", pooled, self.attngate_linear_k.weight)
        keys = self.rotate(self.attngate_knorm(keys), torch.arange(whole) * SEER["block"])
        query = torch.einsum("kgi,kgio->ko", q, self.attngate_linear_q.weight)
        query = self.rotate(self.attngate_qnorm(query)[None], torch.tensor([count - 1]))[0]
        # Both travel as BF16; the open block's key is zero.
        keys, query = keys.bfloat16().float(), query.bfloat16().float()
        logits = torch.zeros(k.shape[1], blocks)
        logits[:, :whole] = torch.einsum("ko,bko->kb", query, keys) / SEER["dim"] ** 0.5
        return logits.softmax(-1)


def seer_attention(case, gap):
    """Qwen3Attention.forward with the gate's mask in the rows of decode."""

    def forward(self, hidden_states, position_embeddings, attention_mask, *args, **kwargs):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q = self.q_norm(self.q_proj(hidden_states).view(shape))[0]
        k = self.k_norm(self.k_proj(hidden_states).view(shape))[0]
        v = self.v_proj(hidden_states).view(shape)[0]
        cos, sin = position_embeddings
        rq, rk = modeling_qwen3.apply_rotary_pos_emb(q[None], k[None], cos, sin, unsqueeze_dim=2)
        tokens, kv = k.shape[0], k.shape[1]
        group = q.shape[1] // kv
        seen = torch.tril(torch.ones(tokens, tokens, dtype=torch.bool)).repeat(kv, 1, 1)
        for t in range(PREFILL, tokens):
            s = self.attn_gate.scores(q[t].view(kv, group, -1), k, t + 1)
            blocks = s.shape[1]
            for h in range(kv):
                if case["mode"] == 1:
                    kept = (
                        blocks
                        if blocks * SEER["block"] <= SEER["budget"]
                        else SEER["budget"] // SEER["block"]
                    )
                    order = s[h].sort(descending=True)
                    chosen = set(order.indices[:kept].tolist())
                    if kept < blocks:
                        gap.append((order.values[kept - 1] - order.values[kept]).item())
                else:
                    chosen = set((s[h] > case["threshold"]).nonzero()[:, 0].tolist())
                    gap.append((s[h] - case["threshold"]).abs().min().item())
                chosen.add(blocks - 1)
                case["selected"].append([self.layer_idx, t, h, *sorted(chosen)])
                for b in set(range(blocks)) - chosen:
                    seen[h, t, b * SEER["block"] : (b + 1) * SEER["block"]] = False
        out = torch.nn.functional.scaled_dot_product_attention(
            rq[0].transpose(0, 1),
            rk[0].transpose(0, 1).repeat_interleave(group, 0),
            v.transpose(0, 1).repeat_interleave(group, 0),
            attn_mask=seen.repeat_interleave(group, 0),
            scale=self.scaling,
        )
        return self.o_proj(out.transpose(0, 1).reshape(*hidden_states.shape[:-1], -1)), None

    return forward


def seer(out):
    tok = tokenizer()
    config = Qwen3Config(
        vocab_size=len(tok),
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_hidden_layers=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        bos_token_id=None,
        eos_token_id=tok.eos_token_id,
        pad_token_id=None,
        seerattn_gate_block_size=SEER["block"],
        seerattn_gate_hidden_size=SEER["dim"],
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for layer in model.model.layers:
        layer.self_attn.attn_gate = SeerGate(config)
    randomise(model)
    store(model, tok, out)
    ids = some_ids(len(tok))
    rows = list(range(PREFILL - 1, CONTEXT, 8))
    cases, logits, gap = [], [], []
    plain = modeling_qwen3.Qwen3Attention.forward
    for mode in (1, 2):
        case = dict(
            mode=mode,
            budget=SEER["budget"],
            threshold=SEER["threshold"] if mode == 2 else 0,
            rows=rows,
            selected=[],
        )
        modeling_qwen3.Qwen3Attention.forward = seer_attention(case, gap)
        with torch.no_grad():
            logits.append(model(torch.tensor([ids])).logits[0, rows])
        case["selected"] = [s for s in case["selected"] if s[1] in rows]
        cases.append(case)
    modeling_qwen3.Qwen3Attention.forward = plain
    print(
        "seer: closest decision",
        min(gap),
        "units",
        [sum(len(s) - 3 for s in c["selected"]) / len(c["selected"]) for c in cases],
    )
    save(out, ids, cases, logits)


# ---- the indexers of DeepSeek-V3.2, GLM-5.2 and MiniMax-M3 ----


def hadamard(x):
    n = x.shape[-1]
    h = torch.ones(1, 1)
    while h.shape[0] < n:
        h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
    return x @ h / n**0.5


def e4m3(x):
    """What E4M3 with one power-of-two scale a vector keeps of x (the reference's act_quant, ue8m0)."""
    scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax(-1, keepdim=True).clamp(min=1e-4) * (1 / 448))))
    return (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale


def best(scores, k):
    """The k best, equal scores by position (transformers leaves their order to torch.topk), ascending."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :k].sort().values


def dsa_indexer(rotate, selected, shared):
    """DeepseekV32Indexer.forward (and GLM's, which rotates otherwise) with FP8 index queries and keys after
    a Hadamard rotation, as DeepSeek's own code has it and transformers leaves out."""

    def forward(self, hidden_states, q_resid, position_embeddings, attention_mask, *args, **kwargs):
        tokens, rope = hidden_states.shape[1], self.qk_rope_head_dim
        cos, sin = position_embeddings
        q = self.wq_b(q_resid).view(1, tokens, self.n_heads, self.head_dim)
        k = self.k_norm(self.wk(hidden_states)).unsqueeze(2)
        rq, rk = rotate(q[..., :rope], k[..., :rope], cos, sin, unsqueeze_dim=2)
        q, k = torch.cat((rq, q[..., rope:]), -1)[0], torch.cat((rk, k[..., rope:]), -1)[0, :, 0]
        weights = self.weights_proj(hidden_states)[0] * self.n_heads**-0.5 * self.head_dim**-0.5
        exact = torch.einsum("qh,qhk->qk", weights, torch.einsum("qhd,kd->qhk", q, k).relu())
        q, k = e4m3(hadamard(q)), e4m3(hadamard(k))
        scores = torch.einsum("qh,qhk->qk", weights, torch.einsum("qhd,kd->qhk", q, k).relu())
        out = torch.zeros(1, tokens, self.index_topk, dtype=torch.int32)
        for t in range(tokens):
            kept = min(self.index_topk, t + 1)
            chosen = best(scores[t, : t + 1], kept)
            # Fewer tokens than slots: the first is named again.
            out[0, t] = torch.cat((chosen, chosen[:1].expand(self.index_topk - kept)))
            selected.append([self.layer_idx, t, 0, *chosen.tolist()])
            if kept <= t:
                same = set(chosen.tolist()) & set(best(exact[t, : t + 1], kept).tolist())
                shared.append(len(same) / kept)
        return out

    return forward


def block_indexer(selected, shared):
    """MiniMaxM3VLIndexer.forward with index queries and keys rounded to BF16, as the model serves them."""

    def forward(self, hidden_states, position_embeddings, cache, position_ids):
        tokens = hidden_states.shape[1]
        q = self.q_norm(self.q_proj(hidden_states).view(1, tokens, -1, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).view(1, tokens, 1, self.head_dim)).transpose(1, 2)
        q, k = modeling_minimax_m3_vl.apply_rotary_pos_emb(q, k, *position_embeddings)
        unrounded = torch.einsum("hqd,kd->hqk", q[0], k[0, 0])
        scores = torch.einsum("hqd,kd->hqk", q[0].bfloat16().float(), k[0, 0].bfloat16().float())
        out = torch.full((1, self.num_heads, tokens, self.topk_blocks), -1)
        for t in range(tokens):
            own = t // self.block_size
            for h in range(self.num_heads):
                parts = [
                    slice(b * self.block_size, min((b + 1) * self.block_size, t + 1)) for b in range(own + 1)
                ]
                block = torch.stack([scores[h, t, p].max() for p in parts])
                exact = torch.stack([unrounded[h, t, p].max() for p in parts])
                block[own] = torch.inf
                kept = min(self.topk_blocks, own + 1)
                chosen = best(block, kept)
                out[0, h, t, :kept] = chosen
                selected.append([self.layer_idx, t, h, *chosen.tolist()])
                exact[own] = torch.inf
                if kept <= own:
                    shared.append(len(set(chosen.tolist()) & set(best(exact, kept).tolist())) / kept)
        return out

    return forward


def indexed(out, config, indexer, make_forward, budget, within, every, gemma=False):
    """Two cases: the indexer as karat rounds it, everywhere; and transformers' own in rows that see at most
    `within` tokens, where nothing is left out and rounding cannot show."""
    tok = tokenizer()
    config.vocab_size = len(tok)
    config.eos_token_id = tok.eos_token_id
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomise(model, gemma)
    for name, b in model.named_buffers():
        if "e_score_correction_bias" in name:
            b.data = torch.linspace(0.3, -0.2, b.numel()).roll(2).bfloat16().float()
    store(model, tok, out)
    ids = some_ids(len(tok))
    rows, early = list(range(7, CONTEXT, every)), list(range(7, within, 16))
    selected, shared = [], []
    own = indexer.forward
    with torch.no_grad():
        indexer.forward = make_forward(selected, shared)
        quantised = model(torch.tensor([ids]), use_cache=False).logits[0, rows]
        indexer.forward = own
        exact = model(torch.tensor([ids]), use_cache=False).logits[0]
    print("of the selections without rounding", sum(shared) / len(shared), "are kept")
    cases = [
        dict(mode=0, budget=0, threshold=0, rows=rows, selected=[s for s in selected if s[1] in rows[5::8]]),
        dict(mode=0, budget=0, threshold=0, rows=early, selected=[]),
    ]
    save(out, ids, cases, [quantised, exact[early]])


MLA = dict(
    hidden_size=32,
    intermediate_size=32,
    moe_intermediate_size=8,
    num_attention_heads=4,
    num_key_value_heads=4,
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=12,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=3,
    first_k_dense_replace=1,
    index_n_heads=4,
    index_head_dim=16,
    index_topk=48,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    bos_token_id=None,
    pad_token_id=None,
)


def deepseek(out):
    config = DeepseekV32Config(
        **MLA,
        num_hidden_layers=3,
        n_group=4,
        topk_group=2,
        rope_parameters=dict(
            rope_type="yarn",
            rope_theta=1e4,
            factor=40,
            original_max_position_embeddings=64,
            beta_fast=32,
            beta_slow=1,
            mscale=1,
            mscale_all_dim=1,
        ),
    )
    rotate = modeling_deepseek_v32.apply_rotary_pos_emb
    indexed(
        out,
        config,
        modeling_deepseek_v32.DeepseekV32Indexer,
        lambda s, g: dsa_indexer(rotate, s, g),
        48,
        48,
        8,
    )


def glm(out):
    config = GlmMoeDsaConfig(
        **{
            **MLA,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
        },
        num_hidden_layers=8,
        n_group=1,
        topk_group=1,
        rms_norm_eps=1e-5,
        index_topk_freq=4,
        index_skip_topk_offset=3,
        rope_parameters=dict(rope_type="default", rope_theta=8e6),
    )

    def rotate(q, k, *args, **kwargs):
        """In place: transformers leaves the pairs' first halves before their second ones, which only a
        Hadamard rotation behind it can tell."""
        rotated = modeling_glm_moe_dsa.apply_rotary_pos_emb_interleave(q, k, *args, **kwargs)
        return [torch.stack(x.chunk(2, -1), -1).flatten(-2) for x in rotated]

    indexed(
        out, config, modeling_glm_moe_dsa.GlmMoeDsaIndexer, lambda s, g: dsa_indexer(rotate, s, g), 48, 48, 8
    )


def minimax(out):
    config = MiniMaxM3VLTextConfig(
        hidden_size=32,
        intermediate_size=8,
        dense_intermediate_size=32,
        shared_intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        rotary_dim=8,
        num_hidden_layers=4,
        max_position_embeddings=512,
        num_local_experts=8,
        num_experts_per_tok=2,
        index_n_heads=2,
        index_head_dim=16,
        index_block_size=16,
        index_topk_blocks=3,
        index_local_blocks=1,
        bos_token_id=None,
        rope_parameters=dict(rope_type="default", rope_theta=5e6, partial_rotary_factor=0.5),
        layer_types=["full_attention"] + ["minimax_m3_sparse"] * 3,
        mlp_layer_types=["dense"] + ["sparse"] * 3,
    )
    indexed(out, config, modeling_minimax_m3_vl.MiniMaxM3VLIndexer, block_indexer, 48, 48, 8, gemma=True)


MODELS = dict(seer=seer, deepseek=deepseek, glm=glm, minimax=minimax)

if __name__ == "__main__":
    for name in sys.argv[2:] or MODELS:
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        MODELS[name](folder)
