#!/usr/bin/env python3
"""transformers with its attention on a `karat node` (examples/hf_attention.py) beside transformers alone.

    hf_client.py --karat build/karat --model SmolLM2-135M-Instruct.Q4_1.gguf \\
                 --prompt tests/fixtures/llama/mpl_2k.json --out hf_client.json

The same model in F32, greedy, after the first 640 tokens of the fixture's prompt: eager attention in torch, then
the node's with KV in F32, dense and with quest at a budget that covers the context; the prompt whole
and in chunks; two prompts of different lengths as one padded batch, beside each alone. Writes what
transformers alone gives and how far the node's logits are from it, and fails when a token differs, when
quest is not dense to the bit, or when a tensor is left in the cache. The tiny models of tests/fixtures
likewise.
"""
import argparse
import importlib.util
import json
import os
import subprocess
import sys

import torch
import transformers

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
spec = importlib.util.spec_from_file_location("hf_attention", os.path.join(ROOT, "examples", "hf_attention.py"))
hf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hf)

PROMPT, TOKENS, BATCH_TOKENS, SHORT, LONG = 640, 64, 16, 150, 400


def generate(model, prompt, count, cache=None, mask=None, chunk=None):
    """Greedy tokens [batch, count] and logits [batch, count, vocab]; equally long whatever is generated."""
    extra = {"cache": cache} if cache is not None else {}
    if chunk is not None:
        extra["prefill_chunk_size"] = chunk
    with torch.inference_mode():
        out = model.generate(prompt, attention_mask=mask if mask is not None else torch.ones_like(prompt),
                             do_sample=False, max_new_tokens=count, min_new_tokens=count, output_logits=True,
                             return_dict_in_generate=True, **extra)
    return out.sequences[:, prompt.shape[1] :], torch.stack(out.logits, 1)


def tensors_in(thing, depth=4):
    if isinstance(thing, torch.Tensor):
        return [thing]
    inside = vars(thing).values() if hasattr(thing, "__dict__") else thing if isinstance(thing, list) else ()
    return [t for x in inside for t in (tensors_in(x, depth - 1) if depth else [])]


class Node:
    """The model's attention on a node with these options, for the block's length."""

    def __init__(self, address, model, **options):
        self.address, self.model, self.options = address, model, options

    def __enter__(self):
        self.client = hf.Client(self.address, self.model, kv_dtype="f32", context_max=1024, **self.options)
        hf.register(self.client)
        self.model.set_attn_implementation("karat")
        return self

    def generate(self, prompt, count, **kwargs):
        cache = hf.KaratCache(self.client, prompt.shape[0])
        result = generate(self.model, prompt, count, cache=cache, **kwargs)
        assert cache.get_seq_length() == prompt.shape[1] + count - 1
        self.client.cache = None
        cache.client = None
        assert not tensors_in(cache), "a tensor is left in the cache"
        cache.close()
        return result

    def __exit__(self, *failure):
        self.client.close()
        self.model.set_attn_implementation("eager")


def tiny_models(address, folder, failures):
    """The committed models of other families: grouped heads, QK norms, windows, other scales."""
    differences = {}
    for family in ("llama", "llama3", "qwen2", "qwen3", "gemma3"):
        model, _ = hf.model_and_tokenizer(os.path.join(folder, family), dtype=torch.float32,
                                          attn_implementation="eager")
        model.generation_config.pad_token_id = 0
        prompt = torch.arange(100).unsqueeze(0) * 7 % model.config.get_text_config().vocab_size
        alone = generate(model, prompt, BATCH_TOKENS)
        with Node(address, model, tokens_max=37) as karat:
            differences[family] = compare("tiny " + family, alone, karat.generate(prompt, BATCH_TOKENS), failures)
    return differences


def compare(name, want, got, failures):
    tokens, logits = want[0], want[1]
    same = torch.equal(tokens, got[0])
    difference = (logits - got[1]).abs().max().item() if same else float("inf")
    print("%-28s %s, largest logit difference %.2e" % (name, "same tokens" if same else "OTHER TOKENS", difference))
    if not same:
        failures.append(name)
    return difference


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--karat", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("--out", required=True)
    o = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    hf.load(os.path.join(os.path.dirname(o.karat), "libkarat.so"))
    model, _ = hf.model_and_tokenizer(o.model, dtype=torch.float32, attn_implementation="eager")
    model.generation_config.pad_token_id = model.generation_config.eos_token_id
    prompt = torch.tensor([json.load(open(o.prompt))["prompt"][:PROMPT]])
    failures = []

    eager = generate(model, prompt, TOKENS)
    short, long = prompt[:, :SHORT], prompt[:, :LONG]
    alone = [generate(model, p, BATCH_TOKENS) for p in (short, long)]
    node = subprocess.Popen([o.karat, "node", "--json", "--listen", "127.0.0.1:0", "--memory", "512M"],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        address = "127.0.0.1:%d" % json.loads(node.stdout.readline())["port"]
        tiny = tiny_models(address, os.path.join(ROOT, "tests", "fixtures", "tiny"), failures)
        with Node(address, model) as karat:
            dense = karat.generate(prompt, TOKENS)
            distance = compare("dense", eager, dense, failures)
            chunked = compare("dense, prompt in chunks", dense, karat.generate(prompt, TOKENS, chunk=250), failures)
            padded = torch.full((2, LONG), model.generation_config.pad_token_id)
            padded[0, -SHORT:], padded[1] = short, long
            mask = torch.ones_like(padded)
            mask[0, :-SHORT] = 0
            both = karat.generate(padded, BATCH_TOKENS, mask=mask)
            batch = max(compare("batch of two, row %d" % i, alone[i], (both[0][i : i + 1], both[1][i : i + 1]),
                                failures) for i in range(2))
        with Node(address, model, attention="quest", budget=1024) as karat:
            if compare("quest, covering budget", dense, karat.generate(prompt, TOKENS), failures) != 0:
                failures.append("quest at a covering budget is not dense")
        with Node(address, model, attention="quest", budget=256) as karat:
            tokens = karat.generate(prompt, BATCH_TOKENS)[0]
            print("%-28s %d of %d tokens as dense" %
                  ("quest, budget 256", (tokens == dense[0][:, :BATCH_TOKENS]).sum(), BATCH_TOKENS))
    finally:
        node.terminate()
        node.wait()
    with open(o.out, "w") as out:
        json.dump({"transformers": transformers.__version__, "torch": torch.__version__,
                   "model": "SmolLM2-135M-Instruct.Q4_1.gguf expanded to F32", "prompt": os.path.basename(o.prompt),
                   "prompt_tokens": prompt.shape[1], "tokens": eager[0][0].tolist(),
                   "first_logits": [round(x, 4) for x in eager[1][0, 0, :32].tolist()],
                   "logit_difference_max": {"dense": distance, "chunked": chunked, "batch": batch, **tiny}}, out)
        out.write("\n")
    if failures:
        print("FAILED: " + "; ".join(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
