#!/usr/bin/env python3
"""Writes tests/fixtures/llama/<prompt>.json: what llama.cpp answers, teacher-forced on its own
greedy choice, with F32 weights and an F32 KV cache.

  make_llama_fixture.py --llama DIR --model SmolLM2-135M-Instruct.Q4_1.gguf --work DIR --out DIR

DIR of --llama is a built llama.cpp tree (build/bin). The quantised file is expanded to F32 by its
llama-quantize, so that both sides hold the same weights to the last bit. Texts are Debian's
(package base-files) or short sentences of our own; ids are stored, so the test needs no text.

Per step the fixture keeps the four best tokens with their logits. The quantised file itself is
then run along the same tokens: of it the 16 best are kept and the log of the sum of exponentials,
for the KL divergence, and the divergence of llama.cpp's own two runs, which says what quantised
arithmetic costs there."""
import argparse
import hashlib
import json
import math
import os
import struct
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
LICENSES = "/usr/share/common-licenses/"
STEPS = 128
PROMPTS = {
    "short_story": ("The lighthouse keeper wrote one line every evening, and tonight he began:", 0),
    "short_list": ("Here are ten facts about the number 128.\n1. It is a power of two.\n2.", 0),
    "mpl_2k": (LICENSES + "MPL-2.0", 2048),
    "gfdl_2k": (LICENSES + "GFDL-1.3", 2048),
    "gpl_6k": (LICENSES + "GPL-3", 6144),
}


def build(llama, work):
    program = os.path.join(work, "llama_logits")
    lib = os.path.join(llama, "build", "bin")
    subprocess.check_call(["cc", "-O2", "-I", llama + "/include", "-I", llama + "/ggml/include",
                           os.path.join(HERE, "llama_logits.c"), "-o", program, "-L", lib,
                           "-lllama", "-lggml", "-lggml-base", "-Wl,-rpath," + lib])
    return program


def top(row, count):
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))[:count]
    return [[i, row[i]] for i in order]


def log_sum(row):
    best = max(row)
    return best + math.log(math.fsum(math.exp(x - best) for x in row))


def rows(path):
    data = open(path, "rb").read()
    vocab = len(data) // 4 // STEPS
    return [struct.unpack_from("<%df" % vocab, data, s * vocab * 4) for s in range(STEPS)]


def divergence(p, q):
    """KL(p || q) of two rows of logits, over the whole vocabulary."""
    a, b = log_sum(p), log_sum(q)
    return math.fsum(math.exp(x - a) * ((x - a) - (y - b)) for x, y in zip(p, q))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--work", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--threads", default="2")
    a = p.parse_args()
    os.makedirs(a.work, exist_ok=True)
    os.makedirs(a.out, exist_ok=True)
    program = build(a.llama, a.work)
    f32 = os.path.join(a.work, "model-f32.gguf")
    if not os.path.exists(f32):
        subprocess.check_call([a.llama + "/build/bin/llama-quantize", "--allow-requantize", a.model, f32, "F32"])
    commit = subprocess.run(["git", "-C", a.llama, "log", "-1", "--format=%H %cs"], capture_output=True,
                            text=True).stdout.strip() or "unknown"
    for name, (source, limit) in PROMPTS.items():
        path = source
        if limit == 0:
            path = os.path.join(a.work, name + ".txt")
            open(path, "w", encoding="utf-8").write(source)
        base = os.path.join(a.work, name)
        subprocess.check_call([program, f32, path, str(limit), str(STEPS), "f32", a.threads, base])
        run = json.load(open(base + ".json"))
        subprocess.check_call([program, a.model, path, str(limit), str(STEPS), "f32", a.threads, base + "-q",
                               base + ".json"])
        exact, quantised = rows(base + ".f32"), rows(base + "-q.f32")
        steps = [{"top": top(row, 4)} for row in exact]
        steps_q = [{"top": [[i, round(x, 4)] for i, x in top(row, 16)], "logsumexp": round(log_sum(row), 4)}
                   for row in quantised]
        own = sum(divergence(p, q) for p, q in zip(exact, quantised)) / STEPS
        text = open(path, "rb").read()
        json.dump({"name": name, "llama.cpp": commit, "system": run["system"],
                   "model": os.path.basename(a.model) + " expanded to F32, KV F32",
                   "text_sha256": hashlib.sha256(text).hexdigest(), "vocab": len(exact[0]),
                   "prompt": run["prompt"], "decoded": run["decoded"], "steps": steps, "quantised": steps_q,
                   "kl_f32_quantised": own},
                  open(os.path.join(a.out, name + ".json"), "w"), separators=(",", ":"))
        print(name, "prompt", len(run["prompt"]), "tokens; KL of llama.cpp's quantised run %.5f" % own)


if __name__ == "__main__":
    main()
