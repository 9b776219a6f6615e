#!/usr/bin/env python3
"""Writes tests/fixtures/tiny: random models of each supported family, as Hugging Face folders and
as GGUF files, with the logits that transformers computes for a fixed prompt in float32.

    python3 tools/make_tiny_models.py OUT [LLAMA_CPP]

Needs torch, transformers (made with 5.24), tokenizers; with sentencepiece and a llama.cpp checkout (its
convert_hf_to_gguf.py) the GGUF files are written too. Everything is seeded.

In each folder: config.json, model.safetensors, tokenizer.json, tokenizer_config.json as
transformers saves them; prompt.json {text, ids, greedy: the next ids by argmax}; logits.f32:
float32 little endian [len(ids)][vocab], row i after reading ids[0..i].
Weights are rounded to the stored type before the logits are computed, so a reader of the file has
exactly the weights the logits come from. Norms and biases are random too: the initial values of
transformers (ones, zeros) would hide mistakes.
"""

import json
import os
import subprocess
import sys

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Regex, trainers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

TEXT = (
    "The memory node keeps the keys and values of every session, and answers each query from them. "
    "A page holds 128 tokens; pages of 16, 64 or 128 tokens lie inside it. Don't count twice: 2026 is 2026.\n"
    "for (i = 0; i < n; i++)\n    sum += key[i] * query[i];\n"
    "Größe, naïve café, Ελληνικά, русский, 日本語, 한국어, العربية — “quotes” and 🙂 emoji.\n"
) * 4
PROMPT = "The memory node answers 128 queries; don't count Größe or 日本語 twice.\n  for (i = 0; i < 16; i++)"
SMOLLM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
DEFAULT = (
    "{% if loop.first and m['role'] != 'system' %}<|im_start|>system\n" + SMOLLM + "<|im_end|>\n{% endif %}"
)
CHATML = (
    "{% for m in messages %}" + DEFAULT + "<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'] }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant"
    "<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set lead = messages[0]['content'] + '\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set lead = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ lead if loop.first else '' }}{{ m['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def byte_level(specials, split, nfc=False, bos=None):
    """Byte-level BPE trained on TEXT. split: "smollm" or the digit pattern of a cl100k rule."""
    tok = Tokenizer(models.BPE(ignore_merges=split == r"\p{N}{1,3}"))
    if nfc:
        tok.normalizer = normalizers.NFC()
    if split == "smollm":
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    else:
        tok.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(CL100K % split), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if bos:
        tok.post_processor = processors.Sequence(
            [
                processors.ByteLevel(trim_offsets=False),
                processors.TemplateProcessing(
                    single=[bos, "$A"],
                    pair=[bos, "$A", bos + ":1", "$B:1"],
                    special_tokens=[(bos, tok.token_to_id(bos))],
                ),
            ]
        )
    return tok


def metaspace(specials, users):
    """BPE over characters with byte fallback, as in Gemma: trained, then given the byte tokens."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.train_from_iterator(TEXT.split("\n"), trainers.BpeTrainer(vocab_size=170, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    pieces = specials + users + ["<0x%02X>" % b for b in range(256)]
    pieces += [p for p in sorted(model["vocab"], key=model["vocab"].get) if p not in pieces]
    tok = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)},
            merges=[tuple(m) for m in model["merges"]],
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )
    tok.normalizer = normalizers.Replace(" ", "▁")
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
    tok.add_tokens([AddedToken(u, special=False, normalized=False) for u in users])
    tok.post_processor = processors.TemplateProcessing(
        single=["<bos>", "$A"],
        pair=["<bos>", "$A", "<bos>:1", "$B:1"],
        special_tokens=[("<bos>", tok.token_to_id("<bos>"))],
    )
    return tok


COMMON = dict(
    hidden_size=64,
    intermediate_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=512,
    initializer_range=0.02,
)
IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
L3 = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
GM = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
MODELS = {
    "llama": (
        LlamaConfig,
        dict(num_hidden_layers=2, tie_word_embeddings=True, rope_theta=1e5, rms_norm_eps=1e-5),
        torch.bfloat16,
        lambda: byte_level(IM, "smollm"),
        dict(eos_token="<|im_end|>"),
        CHATML,
    ),
    "llama3": (
        LlamaConfig,
        dict(
            num_hidden_layers=2,
            tie_word_embeddings=False,
            rms_norm_eps=1e-5,
            rope_parameters=dict(
                rope_type="llama3",
                rope_theta=500000.0,
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
        ),
        torch.float16,
        lambda: byte_level(L3, r"\p{N}{1,3}", bos=L3[0]),
        dict(bos_token=L3[0], eos_token="<|eot_id|>"),
        LLAMA3,
    ),
    "qwen2": (
        Qwen2Config,
        dict(
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=True,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
        ),
        torch.float32,
        lambda: byte_level(IM, r"\p{N}", nfc=True),
        dict(eos_token="<|im_end|>"),
        CHATML.replace(SMOLLM, QWEN),
    ),
    "qwen3": (
        Qwen3Config,
        dict(num_hidden_layers=2, tie_word_embeddings=False, rope_theta=1e6, rms_norm_eps=1e-6),
        torch.bfloat16,
        lambda: byte_level(IM, r"\p{N}", nfc=True),
        dict(eos_token="<|im_end|>"),
        CHATML.replace(DEFAULT, ""),
    ),
    "gemma3": (
        Gemma3TextConfig,
        dict(
            num_hidden_layers=3,
            sliding_window=16,
            query_pre_attn_scalar=24,
            rms_norm_eps=1e-6,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        ),
        torch.bfloat16,
        lambda: metaspace(GM, ["\n\n", "<unused0>"]),
        dict(bos_token="<bos>", eos_token="<eos>", unk_token="<unk>", pad_token="<pad>"),
        GEMMA,
    ),
}


def randomise(model, gemma):
    g = torch.Generator().manual_seed(20261130)
    for name, p in sorted(model.named_parameters()):
        r = torch.randn(p.shape, generator=g)
        if "norm" in name:
            p.data = 0.3 * r + (0.0 if gemma else 1.0)
        elif "embed" in name or "lm_head" in name:
            p.data = 0.5 * r
        elif name.endswith("bias"):
            p.data = 0.5 * r
        else:
            p.data = r * 1.4 / p.shape[1] ** 0.5


def make(name, out):
    config_class, settings, dtype, make_tokenizer, specials, template = MODELS[name]
    tok = PreTrainedTokenizerFast(
        tokenizer_object=make_tokenizer(), clean_up_tokenization_spaces=False, **specials
    )
    tok.chat_template = template
    ids = tok(PROMPT)["input_ids"]
    settings = {**COMMON, **settings}
    config = config_class(
        vocab_size=len(tok),
        bos_token_id=tok.bos_token_id,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
        attn_implementation="eager",
        **settings
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    randomise(model, name == "gemma3")
    model.tie_weights()
    model.to(dtype).save_pretrained(out)
    tok.save_pretrained(out)
    with torch.no_grad():
        oracle = AutoModelForCausalLM.from_pretrained(
            out, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        logits = oracle(torch.tensor([ids])).logits[0]
        greedy, sequence = [], list(ids)
        for _ in range(24):
            greedy.append(int(oracle(torch.tensor([sequence])).logits[0, -1].argmax()))
            sequence.append(greedy[-1])
    logits.numpy().astype("<f4").tofile(os.path.join(out, "logits.f32"))
    with open(os.path.join(out, "prompt.json"), "w") as f:
        json.dump(dict(text=PROMPT, ids=ids, greedy=greedy), f)
    print(
        name,
        "ids",
        len(ids),
        "vocab",
        len(tok),
        "bytes",
        os.path.getsize(os.path.join(out, "model.safetensors")),
        "top",
        logits[-1].max().item(),
        "spread",
        logits.std().item(),
    )


def convert(name, out, llama_cpp):
    """GGUF by llama.cpp's own converter; only its guess of the pre-tokenizer (a hash of known
    tokenizers) is answered here."""
    pre = dict(llama="smollm", llama3="llama-bpe").get(name, "qwen2")
    kind = dict(llama3="f16", qwen2="f32").get(name, "bf16")
    code = (
        "import sys; sys.path.insert(0, %r); sys.argv = ['convert', %r, '--outfile', %r, '--outtype', %r]; "
        "import conversion.base as b; b.TextModel.get_vocab_base_pre = lambda self, t: %r; "
        "import convert_hf_to_gguf as c; c.main()"
    )
    subprocess.run(
        [sys.executable, "-c", code % (llama_cpp, out, out + ".gguf", kind, pre)],
        check=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [os.path.join(llama_cpp, "gguf-py"), os.environ.get("PYTHONPATH", "")]
            ),
        },
    )


if __name__ == "__main__":
    for name in MODELS:
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        make(name, folder)
        if len(sys.argv) > 2 and name != "gemma3":
            convert(name, folder, sys.argv[2])
