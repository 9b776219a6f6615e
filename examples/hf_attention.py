#!/usr/bin/env python3
"""Hugging Face transformers with its attention on a memory node.

    karat node &
    python examples/hf_attention.py MODEL --prompt "The capital of France is" --tokens 32
    python examples/hf_attention.py MODEL --attention quest --budget 1024 ...

MODEL is a folder with config.json or a .gguf file of a Llama-like model: one whose attention is causal
and goes through transformers' AttentionInterface. Needs torch, transformers (5.24) and cffi, and
libkarat.so (built: `make`).

How it works. transformers calls, per layer, cache.update(key, value) and then the attention function
that is registered under the model's attn_implementation. Here the cache is a KaratCache: it counts
tokens and keeps no key or value; update returns the new tokens' rows alone. The attention function,
registered as "karat", hands them with the queries to the node, which appends and attends. So no KV is
left in torch; what a step holds is the rows of its own tokens.

Each row of a batch is a session of its own: padding, at whichever side, is not sent, so sessions are as
long as their prompts. Cropping the cache cuts the sessions. Beam search would copy sessions and is
refused; attention dropout and attention weights do not exist here.
"""
import argparse
import os
import re
import sys

import cffi
import torch
import transformers
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface

HERE = os.path.dirname(os.path.abspath(__file__))
METHOD_DEFAULT = 0xFFFFFFFF  # KARAT_METHOD_DEFAULT


# ---- karat/client.h through cffi


def declarations(include):
    """The headers' C declarations: what cffi reads has no preprocessor lines and no export marks."""
    text = ""
    for name in ("karat.h", "client.h"):
        with open(os.path.join(include, "karat", name)) as header:
            text += header.read()
    text = re.sub(r'extern "C" \{\n#endif', "#endif", text)
    text = re.sub(r"#ifdef __cplusplus\n\}\n#endif", "", text)
    text = re.sub(r"^#(?!define \w+ \d+$).*$", "", text, flags=re.M)  # but plain numbers
    return text.replace("KARAT_API ", "")


ffi = cffi.FFI()
library = None


def load(path=None, include=None):
    """Loads libkarat.so once: by default the one that was built beside this script."""
    global library
    if library is None:
        ffi.cdef(declarations(include or os.path.join(HERE, "..", "include")))
        library = ffi.dlopen(path or os.path.join(HERE, "..", "build", "libkarat.so"))
    return library


class KaratError(RuntimeError):
    def __init__(self, error):
        self.status = ffi.string(library.karat_status_name(error.status)).decode()
        super().__init__("%s: %s" % (self.status, ffi.string(error.text).decode()))


def call(function, *arguments):
    error = ffi.new("karat_error *")
    if function(*arguments, error) != 0:
        raise KaratError(error)


KV_TYPES = {"f32": 0, "f16": 1, "bf16": 2}
TORCH_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


class Client:
    """A connection to a node, configured for one transformers model."""

    def __init__(self, node, model, *, key=None, attention="dense", budget=0, dense_layers=METHOD_DEFAULT,
                 kv_dtype="bf16", context_max=8192, tokens_max=256, timeout_ms=60000):
        lib, config = load(), model.config.get_text_config()
        host, _, port = node.rpartition(":")
        options = ffi.new("karat_client_options *")
        options.struct_size = ffi.sizeof("karat_client_options")
        options.timeout_ms = timeout_ms
        key_memory = ffi.from_buffer(key) if key else ffi.NULL
        options.key, options.key_bytes = key_memory, len(key or b"")
        handle = ffi.new("karat_client **")
        call(lib.karat_client_connect, host.strip("[]").encode(), int(port), options, handle)
        self.handle = handle[0]
        self.layers = config.num_hidden_layers
        self.heads = config.num_attention_heads
        self.value_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.scaling = next(m.scaling for m in model.modules() if hasattr(m, "scaling"))
        self.context_max, self.tokens_max = context_max, tokens_max
        self.cache = None  # the one that was updated last: whose rows the attention function gets
        method = ffi.new("char[]", attention.encode())
        types = getattr(config, "layer_types", None) or ["full_attention"] * self.layers
        layers = ffi.new("karat_client_layer[]", self.layers)
        for layer, kind in zip(layers, types):
            layer.method, layer.budget, layer.dense_layers = method, budget, dense_layers
            layer.window = config.sliding_window if kind == "sliding_attention" else 0
        shape = ffi.new("karat_client_model *")
        shape.struct_size = ffi.sizeof("karat_client_model")
        shape.layers, shape.query_heads = self.layers, self.heads
        shape.kv_heads = getattr(config, "num_key_value_heads", None) or self.heads
        shape.key_dim = shape.value_dim = self.value_dim
        shape.kv_dtype, shape.softmax_scale = KV_TYPES[kv_dtype], self.scaling
        shape.context_max, shape.tokens_max = context_max, tokens_max
        shape.layer = layers
        call(lib.karat_client_configure, self.handle, shape)

    def attend(self, layer, rows):
        """rows: (session, query, key, value, output, prefill), tensors as [tokens, heads, dim]."""
        items = ffi.new("karat_attend_item[]", len(rows))
        for item, (session, query, key, value, output, prefill) in zip(items, rows):
            item.session, item.tokens, item.prefill = session, query.shape[0], prefill
            for array, tensor in ((item.query, query), (item.key, key), (item.value, value)):
                array.data = ffi.cast("void *", tensor.data_ptr())
                array.dtype = TORCH_TYPES[tensor.dtype]
                array.token_stride, array.head_stride = tensor.stride(0), tensor.stride(1)
            item.output = ffi.cast("float *", output.data_ptr())
            item.output_token_stride, item.output_head_stride = output.stride(0), output.stride(1)
        call(library.karat_client_attend, self.handle, layer, items, len(rows))

    def close(self):
        library.karat_client_disconnect(self.handle)
        self.handle = ffi.NULL


# ---- transformers' side


class CountingLayer(CacheLayerMixin):
    """How many tokens the model has seen in a layer, padding included; nothing of them."""

    is_sliding = False
    is_croppable = True
    tokens = 0

    def lazy_initialization(self, key_states, value_states):
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        self.is_initialized = True
        self.tokens += key_states.shape[-2]
        return key_states, value_states

    def get_seq_length(self):
        return self.tokens

    def get_mask_sizes(self, query_length):
        return self.tokens + query_length, 0

    def get_max_length(self):
        return -1

    def reset(self):
        self.tokens = 0

    def crop(self, tokens_to_remove):
        self.tokens = max(0, self.tokens - abs(tokens_to_remove))


class KaratCache(Cache):
    """The sessions of one batch on the node. Pass it to model.generate or the model itself as `cache`."""

    def __init__(self, client, batch_size=1, tokens_max=None, seed=1):
        super().__init__(layers=[CountingLayer() for _ in range(client.layers)])
        self.client, self.sessions = client, []
        self.prefilling = [True] * batch_size
        for _ in range(batch_size):
            session = ffi.new("karat_session **")
            call(library.karat_session_open, client.handle, tokens_max or client.context_max, seed, session)
            self.sessions.append(session[0])

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        self.client.cache = self
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def end_prefill(self, row):
        if self.prefilling[row]:
            call(library.karat_session_end_prefill, self.sessions[row])
            self.prefilling[row] = False

    def crop(self, tokens_to_remove):
        for session in self.sessions if tokens_to_remove != 0 else ():
            tokens = library.karat_session_tokens(session, 0)
            call(library.karat_session_trim, session, max(0, tokens - abs(tokens_to_remove)))
        super().crop(tokens_to_remove)

    def reset(self):
        for row, session in enumerate(self.sessions):
            call(library.karat_session_trim, session, 0)
            self.prefilling[row] = True
        super().reset()

    def reorder_cache(self, beam_idx):
        raise NotImplementedError("beams would copy sessions; a node keeps one continuation of each")

    batch_repeat_interleave = batch_select_indices = reorder_cache

    def close(self):
        for session in self.sessions:
            call(library.karat_session_close, session)
        self.sessions = []


def padding_mask(batch_size, q_length, kv_length, attention_mask=None, **kwargs):
    """What transformers hands to karat_attention as mask: [batch, tokens so far], False where padded."""
    return attention_mask


def register(client):
    """Makes attn_implementation="karat" attend on client's node."""

    def karat_attention(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **kwargs):
        cache = client.cache
        batch, heads, tokens, _ = query.shape
        if cache is None or key.shape[2] != tokens or len(cache.sessions) != batch:
            raise ValueError("attention on a node needs a KaratCache of the batch's size, and use_cache")
        if scaling is not None and abs(scaling - client.scaling) > 1e-6 * client.scaling:
            raise ValueError("layer %d scales scores by %g, the node by %g" %
                             (module.layer_idx, scaling, client.scaling))
        # [batch, heads, tokens, dim] -> [tokens, heads, dim] of a row; a view, strides do the rest.
        rows = [[tensor[row].detach().cpu().transpose(0, 1) for tensor in (query, key, value)]
                for row in range(batch)]
        output = torch.zeros(batch, tokens, heads, client.value_dim)
        waiting = []
        for row, (q, k, v) in enumerate(rows):
            kept = range(tokens)
            if attention_mask is not None:
                kept = attention_mask[row, -tokens:].nonzero().flatten().tolist()
            if not kept:
                continue
            first, last = kept[0], kept[-1] + 1
            if last - first != len(kept):
                raise ValueError("row %d of the batch is padded in its middle" % row)
            session = cache.sessions[row]
            if tokens > 1:
                cache.prefilling[row] = True
            elif library.karat_session_tokens(session, 0) > 0:
                cache.end_prefill(row)
            prefill = cache.prefilling[row]
            for at in range(first, last, client.tokens_max):
                end = min(last, at + client.tokens_max)
                item = (session, q[at:end], k[at:end], v[at:end], output[row, at:end], prefill)
                if prefill:
                    client.attend(module.layer_idx, [item])
                else:
                    waiting.append(item)
        for at in range(0, len(waiting), client.tokens_max):  # decode rows of the batch, together
            client.attend(module.layer_idx, waiting[at : at + client.tokens_max])
        return output.to(query), None

    transformers.AttentionInterface.register("karat", karat_attention)
    AttentionMaskInterface.register("karat", padding_mask)


def model_and_tokenizer(path, **kwargs):
    folder, file = os.path.split(path) if path.endswith(".gguf") else (path, None)
    where = {"gguf_file": file} if file else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder or ".", **where, **kwargs)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(folder or ".", **where)


def main():
    parser = argparse.ArgumentParser(description="transformers with its attention on a karat node")
    parser.add_argument("model")
    parser.add_argument("--node", default="127.0.0.1:7420", metavar="HOST:PORT")
    parser.add_argument("--key-file")
    parser.add_argument("--library", help="libkarat.so, by default that of build/")
    parser.add_argument("--prompt", action="append", help="several make a batch")
    parser.add_argument("--tokens", "-n", type=int, default=64)
    parser.add_argument("--attention", default="dense", help="dense, quest, streamingllm, ...")
    parser.add_argument("--budget", type=int, default=0)
    parser.add_argument("--kv-dtype", default="bf16", choices=KV_TYPES)
    parser.add_argument("--ctx-size", type=int, default=8192)
    o = parser.parse_args()
    load(o.library)
    model, tokenizer = model_and_tokenizer(o.model, dtype=torch.float32)
    key = open(o.key_file, "rb").read().removesuffix(b"\n") if o.key_file else None
    client = Client(o.node, model, key=key, attention=o.attention, budget=o.budget,
                    kv_dtype=o.kv_dtype, context_max=o.ctx_size)
    register(client)
    model.set_attn_implementation("karat")
    prompts = o.prompt or ["The capital of France is"]
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.pad_token or tokenizer.eos_token
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    cache = KaratCache(client, len(prompts))
    with torch.inference_mode():
        out = model.generate(**inputs, cache=cache, max_new_tokens=o.tokens, do_sample=False)
    for row in out:
        print(tokenizer.decode(row, skip_special_tokens=True))
    cache.close()
    client.close()


if __name__ == "__main__":
    sys.exit(main())
