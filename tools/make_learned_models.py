#!/usr/bin/env python3
"""Writes tests/fixtures/learned: tiny random checkpoints of the models whose retrieval is learned, with
the logits and selections of an implementation that is not karat's.

    python3 tools/make_learned_models.py OUT [NAME...]

Needs torch, transformers (made with 5.24), tokenizers. Everything is seeded.

In each folder: config.json, model.safetensors and the tokenizer as transformers saves them; prompt.json
{ids, prefill: how many of them are a prompt, rows: the positions whose logits are kept, cases: [{mode,
budget, threshold, selected: [[layer, position, list, units...]]}]}; logits.f32: float32 little endian
[cases][rows][vocab], each row after reading ids[0..row], all ids teacher-forced.

The oracle computes in F32 from the stored weights. What it adds to transformers' own modules is said
where it is added: karat keeps index queries and keys in the narrow types of the papers, so the oracle
rounds them likewise; else a selection near a tie could differ for no fault of either side.
"""

import copy
import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen3Config
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


def store(model, tok, out):
    """Saves in BF16 and leaves the model in F32 with the weights that were saved. Its tables of rotary
    frequencies are not weights and stay as they are."""
    for p in model.parameters():
        p.data = p.data.bfloat16().float()
    model.tie_weights()
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    tok.save_pretrained(out)


def save(out, ids, rows, cases, logits, **more):
    """cases: dicts; logits: one [rows][vocab] tensor each."""
    torch.stack(logits).numpy().astype("<f4").tofile(os.path.join(out, "logits.f32"))
    with open(os.path.join(out, "prompt.json"), "w") as f:
        json.dump(dict(ids=ids, prefill=PREFILL, rows=rows, cases=cases, **more), f, separators=(",", ":"))
        f.write("\n")
    print(out, "weights", os.path.getsize(os.path.join(out, "model.safetensors")), "spread", logits[0].std().item())


def some_ids(vocab, count=CONTEXT):
    g = torch.Generator().manual_seed(7)
    return torch.randint(3, vocab, (count,), generator=g).tolist()


# ---- SeerAttention-R: gates on Qwen3 ----

SEER = dict(block=16, dim=16, budget=48, threshold=0.09)


class SeerGate(torch.nn.Module):
    """The gate by the paper's formulas, names and shapes by microsoft/SeerAttention."""

    def __init__(self, config):
        super().__init__()
        kv, group, d = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads, config.head_dim
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
                    kept = blocks if blocks * SEER["block"] <= SEER["budget"] else SEER["budget"] // SEER["block"]
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
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, num_hidden_layers=2, max_position_embeddings=512, tie_word_embeddings=True, rope_theta=1e6,
        rms_norm_eps=1e-6, bos_token_id=None, eos_token_id=tok.eos_token_id, pad_token_id=None,
        seerattn_gate_block_size=SEER["block"], seerattn_gate_hidden_size=SEER["dim"],
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
        case = dict(mode=mode, budget=SEER["budget"], threshold=SEER["threshold"] if mode == 2 else 0, selected=[])
        modeling_qwen3.Qwen3Attention.forward = seer_attention(case, gap)
        with torch.no_grad():
            logits.append(model(torch.tensor([ids])).logits[0, rows])
        case["selected"] = [s for s in case["selected"] if s[1] in rows]
        cases.append(case)
    modeling_qwen3.Qwen3Attention.forward = plain
    print("seer: closest decision", min(gap), "units", [sum(len(s) - 3 for s in c["selected"]) / len(c["selected"]) for c in cases])
    save(out, ids, rows, cases, logits)


MODELS = dict(seer=seer)

if __name__ == "__main__":
    for name in sys.argv[2:] or MODELS:
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        MODELS[name](folder)
