#!/usr/bin/env python3
"""Writes the starting inputs of the model-file fuzz targets, each a few KB and sound.

python3 tools/make_fuzz_corpus.py tests/fuzz/corpus
"""

import json
import os
import struct
import sys

U32, F32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(kind, v):
    return {
        U32: lambda: struct.pack("<I", v),
        F32: lambda: struct.pack("<f", v),
        BOOL: lambda: struct.pack("<B", v),
        STRING: lambda: text(v),
    }[kind]()


def key(name, kind, v):
    return text(name) + struct.pack("<I", kind) + value(kind, v)


def array(name, kind, values):
    code = 5 if kind == "i32" else kind
    body = b"".join(struct.pack("<i", v) if kind == "i32" else value(kind, v) for v in values)
    return text(name) + struct.pack("<IIQ", ARRAY, code, len(values)) + body


def gguf(arch, keys, tensors, version=3):
    """tensors: (name, shape innermost first, type code, bytes)"""
    out = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys)) + b"".join(keys)
    offset = 0
    for name, shape, code, size in tensors:
        out += text(name) + struct.pack("<I", len(shape)) + struct.pack("<%dQ" % len(shape), *shape)
        out += struct.pack("<IQ", code, offset)
        offset += (size + 31) // 32 * 32
    out += b"\0" * (-len(out) % 32)
    return out + bytes(offset)


def model(arch, tokens, extra):
    """One layer, hidden 32, one head; matrices in Q4_0 (18 bytes per 32 weights), norms in F32."""
    keys = [key("general.architecture", STRING, arch)]
    for name, v in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 32),
        ("feed_forward_length", 32),
        ("attention.head_count", 1),
    ]:
        keys.append(key(arch + "." + name, U32, v))
    keys.append(key(arch + ".attention.layer_norm_rms_epsilon", F32, 1e-6))
    keys.append(array("tokenizer.ggml.tokens", STRING, tokens))
    norm = lambda n: (n, [32], 0, 128)
    matrix = lambda n, rows=32: (n, [32, rows], 2, 18 * rows)
    tensors = [matrix("token_embd.weight", len(tokens)), norm("output_norm.weight")]
    names = ["attn_norm", "ffn_norm"]
    if arch == "gemma3":
        names += ["post_attention_norm", "post_ffw_norm"]
    if arch in ("gemma3", "qwen3"):
        names += ["attn_q_norm", "attn_k_norm"]
    tensors += [norm("blk.0.%s.weight" % n) for n in names]
    tensors += [
        matrix("blk.0.%s.weight" % n)
        for n in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ]
    return gguf(arch, keys + extra, tensors)


def byte_level(pre):
    tokens = ["<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "Ċ", "Ġa", "1", "Ã", "¶", "Ã¶"]
    return tokens, [
        key("tokenizer.ggml.model", STRING, "gpt2"),
        key("tokenizer.ggml.pre", STRING, pre),
        array("tokenizer.ggml.token_type", "i32", [3, 3] + [1] * 10),
        array("tokenizer.ggml.merges", STRING, ["a b", "Ġ a", "Ã ¶"]),
        key("tokenizer.ggml.eos_token_id", U32, 1),
        key("tokenizer.chat_template", STRING, "<|im_start|>system\nBe kind.<|im_end|>"),
    ]


def sentencepiece():
    tokens = ["<unk>", "<bos>", "<eos>", "<0x41>", "<0x0A>", "▁", "a", "b", "ab", "▁ab", "\n\n", "ö"]
    return tokens, [
        key("tokenizer.ggml.model", STRING, "llama"),
        key("tokenizer.ggml.add_space_prefix", BOOL, 0),
        array("tokenizer.ggml.token_type", "i32", [2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 4, 1]),
        array("tokenizer.ggml.scores", F32, [0, 0, 0, 0, 0, -1, -2, -3, -0.5, -0.25, 0, -4]),
        key("tokenizer.ggml.bos_token_id", U32, 1),
        key("tokenizer.ggml.unknown_token_id", U32, 0),
    ]


def safetensors(tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, size in tensors:
        header[name] = dict(dtype=dtype, shape=shape, data_offsets=[at, at + size])
        at += size
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + bytes(at)


def tokenizer_json(kind):
    if kind == "metaspace":
        vocab = (
            ["<unk>", "<bos>"] + ["<0x%02X>" % b for b in (0x41, 0x0A, 0xC3)] + ["▁", "a", "b", "ab", "▁ab"]
        )
        return dict(
            added_tokens=[dict(id=1, content="<bos>", special=True), dict(id=10, content="\n\n")],
            normalizer=dict(
                type="Sequence",
                normalizers=[
                    dict(type="Prepend", prepend="▁"),
                    dict(type="Replace", pattern={"String": " "}, content="▁"),
                ],
            ),
            pre_tokenizer=None,
            post_processor=dict(type="TemplateProcessing", single=[dict(SpecialToken=dict(id="<bos>"))]),
            model=dict(
                type="BPE",
                unk_token="<unk>",
                byte_fallback=True,
                fuse_unk=True,
                vocab={p: i for i, p in enumerate(vocab)},
                merges=["a b", "▁ ab"],
            ),
        )
    vocab = ["<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "Ġa", "1", "Ã", "¶", "Ã¶"]
    digits = dict(type="Digits", individual_digits=True)
    return dict(
        added_tokens=[dict(id=i, content=vocab[i], special=True) for i in (0, 1)],
        normalizer=dict(type="NFC"),
        pre_tokenizer=dict(
            type="Sequence",
            pretokenizers=[digits, dict(type="ByteLevel", add_prefix_space=False, use_regex=True)],
        ),
        model=dict(
            type="BPE",
            ignore_merges=kind == "whole",
            vocab={p: i for i, p in enumerate(vocab)},
            merges=[["a", "b"], ["Ġ", "a"], ["Ã", "¶"]],
        ),
    )


def write(folder, name, data):
    os.makedirs(os.path.join(sys.argv[1], folder), exist_ok=True)
    with open(os.path.join(sys.argv[1], folder, name), "wb") as f:
        f.write(data)


if __name__ == "__main__":
    for pre in ("smollm", "llama-bpe", "qwen2", "default"):
        tokens, keys = byte_level(pre)
        extra = [key("tokenizer.ggml.bos_token_id", U32, 0)] if pre == "llama-bpe" else []
        arch = "qwen3" if pre == "qwen2" else "llama"
        write("gguf", pre, model(arch, tokens, keys + extra))
    tokens, keys = sentencepiece()
    write("gguf", "gemma3", model("gemma3", tokens, keys + [key("gemma3.attention.sliding_window", U32, 16)]))
    write("safetensors", "two", safetensors([("a", "F32", [2, 3], 24), ("b", "BF16", [4], 8)]))
    write("safetensors", "scalar", safetensors([("s", "I64", [], 8), ("h", "F16", [1, 2, 2], 8)]))
    write("safetensors", "none", safetensors([]))
    for kind in ("bytes", "whole", "metaspace"):
        write("tokenizer_json", kind, json.dumps(tokenizer_json(kind), ensure_ascii=False).encode())
