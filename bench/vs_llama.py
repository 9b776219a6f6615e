#!/usr/bin/env python3
"""Decode speed of karat beside llama.cpp: same file, same threads, turn by turn in one run.

  bench/vs_llama.py --llama DIR --model FILE.gguf [--karat build/karat] [--threads 2] [--repeats 3]
                    [--only single|batch|remote] [--json FILE]

single   one stream: 64 tokens after 512, and 256 tokens after 7,936, dense and quest (budget 1024)
batch    16 sessions of 4,096 tokens each, 64 tokens more, against llama.cpp's server with 16 slots
remote   one stream and 16 sessions through `karat node` over shared memory and TCP, against the
         node inside the process

DIR is a built llama.cpp tree (build/bin). Every figure is the median of the repeats; repeats of the
systems alternate, so that a busy neighbour meets all of them. Standard library only."""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

LICENSES = "/usr/share/common-licenses/"
TEXTS = ["GPL-3", "GFDL-1.3", "MPL-1.1", "LGPL-2.1", "GPL-2", "MPL-2.0", "Apache-2.0", "GFDL-1.2", "LGPL-2"]


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def corpus(start):
    """All texts, beginning with another one for each start, so that sessions share no prefix."""
    order = TEXTS[start % len(TEXTS):] + TEXTS[:start % len(TEXTS)]
    return ("Session %d.\n" % start) + "".join(open(LICENSES + t, encoding="utf-8").read() for t in order)


class Karat:
    def __init__(self, program, model, threads):
        self.program, self.model, self.threads = program, model, threads

    def run(self, files, tokens, *options):
        command = [self.program, "run", self.model, "-f", files, "-n", str(tokens), "--ignore-end", "--json",
                   *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise SystemExit("%s: %s" % (" ".join(command), done.stderr.strip().splitlines()[-1:]))
        return json.loads(done.stdout)

    def prompt_of(self, start, tokens, folder):
        """A file whose text is exactly `tokens` tokens long (bisected over its characters)."""
        text = corpus(start)
        low, high = 0, min(len(text), tokens * 8)
        path = os.path.join(folder, "prompt_%d_%d.txt" % (start, tokens))
        while True:
            middle = (low + high) // 2
            with open(path, "w", encoding="utf-8") as f:
                f.write(text[:middle])
            try:
                have = self.run(path, 1, "--dry-run")["context_tokens"] - 1
            except SystemExit:  # over the model's context
                have = tokens + 1
            if have == tokens or high - low <= 1:
                return path
            low, high = (middle, high) if have < tokens else (low, middle)


def threads_of(n):
    return ["--threads", str(n), "--device-threads", str(n)]


def llama_bench(llama, model, threads, depth, tokens):
    out = subprocess.run([llama + "/build/bin/llama-bench", "-m", model, "-t", str(threads), "-p", "0", "-n",
                          str(tokens), "-d", str(depth), "-r", "1", "-o", "json"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    return json.loads(out)[0]["avg_ts"]


def medians(rows):
    return {k: statistics.median(r[k] for r in rows) for k in rows[0]}


def decode_rate(result):
    return result["timings"]["decode_tokens_per_s"]


def single(a, karat, folder, results):
    for depth, tokens in ((512, 64), (7936, 256)):
        prompt, rows = karat.prompt_of(0, depth, folder), []
        for _ in range(a.repeats):
            rows.append({
                "llama": llama_bench(a.llama, a.model, a.threads, depth, tokens),
                "dense": decode_rate(karat.run(prompt, tokens, *threads_of(a.threads))),
                "quest": decode_rate(karat.run(prompt, tokens, "--attention", "quest", "--budget", "1024",
                                               *threads_of(a.threads))),
            })
            say("single", depth, rows[-1])
        m = medians(rows)
        results.append({"what": "single stream, %d tokens after %d" % (tokens, depth), "unit": "tokens/s",
                        "median": m, "dense/llama": m["dense"] / m["llama"], "quest/llama": m["quest"] / m["llama"],
                        "repeats": rows})


class LlamaServer:
    def __init__(self, llama, model, threads, slots, context):
        self.port = 18080 + os.getpid() % 1000
        self.process = subprocess.Popen(
            [llama + "/build/bin/llama-server", "-m", model, "-t", str(threads), "-np", str(slots), "-c",
             str(slots * context), "--host", "127.0.0.1", "--port", str(self.port), "--no-webui",
             "--cache-ram", "0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                urllib.request.urlopen("http://127.0.0.1:%d/health" % self.port, timeout=1).read()
                return
            except OSError:
                time.sleep(0.2)
        raise SystemExit("llama-server did not start")

    def complete(self, slot, prompt, tokens, out):
        body = json.dumps({"prompt": prompt, "n_predict": tokens, "id_slot": slot, "cache_prompt": True,
                           "ignore_eos": True, "temperature": 0}).encode()
        request = urllib.request.Request("http://127.0.0.1:%d/completion" % self.port, body,
                                         {"Content-Type": "application/json"})
        out[slot] = json.loads(urllib.request.urlopen(request, timeout=3000).read())

    def all_at_once(self, prompts, tokens):
        out = [None] * len(prompts)
        workers = [threading.Thread(target=self.complete, args=(i, p, tokens, out)) for i, p in enumerate(prompts)]
        begin = time.monotonic()
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        return time.monotonic() - begin, out

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def batch(a, karat, folder, results, sessions=16, context=4096, tokens=64):
    prompts = [open(karat.prompt_of(i, context, folder), encoding="utf-8").read() for i in range(sessions)]
    files = os.path.join(folder, "all.txt")
    with open(files, "w", encoding="utf-8") as f:
        f.write("\n---\n".join(p.strip("\n") for p in prompts))
    rows = []
    server = LlamaServer(a.llama, a.model, a.threads, sessions, context + 256)
    server.all_at_once(prompts, 1)  # fills every slot's cache; the next round decodes only
    for _ in range(a.repeats):
        wall, replies = server.all_at_once(prompts, tokens)
        fresh = sum(r["timings"]["prompt_n"] for r in replies)
        row = {"llama": sum(r["timings"]["predicted_n"] for r in replies) / wall, "llama_prompt_tokens": fresh}
        server.process.send_signal(signal.SIGSTOP)
        for name, options in (("dense", []), ("quest", ["--attention", "quest", "--budget", "1024"])):
            r = karat.run(files, tokens, *options)
            row[name] = decode_rate(r)
            row[name + "_both_at_work"] = r["stages"]["both_at_work_share"]
        server.process.send_signal(signal.SIGCONT)
        rows.append(row)
        say("batch", row)
    server.stop()
    m = medians(rows)
    results.append({"what": "%d sessions of %d tokens, %d more each" % (sessions, context, tokens),
                    "unit": "tokens/s in all", "median": m, "dense/llama": m["dense"] / m["llama"],
                    "quest/llama": m["quest"] / m["llama"], "repeats": rows})


class Node:
    def __init__(self, karat, transport, threads):
        self.process = subprocess.Popen(
            [karat.program, "node", "--listen", "127.0.0.1:0", "--transport", transport, "--threads-per-device",
             str(threads), "--memory", "2G", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = re.search(r"127\.0\.0\.1:\d+", self.process.stdout.readline()).group(0)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(30)


def remote(a, karat, folder, results):
    one = karat.prompt_of(0, 4096, folder)
    many = os.path.join(folder, "many.txt")
    with open(many, "w", encoding="utf-8") as f:
        f.write("\n---\n".join(open(karat.prompt_of(i, 1024, folder), encoding="utf-8").read().strip("\n")
                               for i in range(16)))
    for what, files, threads, device_threads, tokens in (
            ("one stream at 4,096", one, a.threads, a.threads, 64),
            ("16 sessions of 1,024", many, max(1, a.threads // 2), max(1, a.threads // 2), 32)):
        rows = []
        for _ in range(a.repeats):
            row = {"embedded": decode_rate(karat.run(files, tokens, "--threads", str(threads), "--device-threads",
                                                     str(device_threads)))}
            for transport in ("shm", "tcp"):
                node = Node(karat, transport, device_threads)
                row[transport] = decode_rate(karat.run(files, tokens, "--threads", str(threads), "--memory-node",
                                                       node.address, "--transport", transport))
                node.stop()
            rows.append(row)
            say("remote", what, row)
        m = medians(rows)
        results.append({"what": "remote node, " + what, "unit": "tokens/s", "median": m,
                        "shm slower by": 1 - m["shm"] / m["embedded"],
                        "tcp slower by": 1 - m["tcp"] / m["embedded"], "repeats": rows})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--karat", default="build/karat")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--only", choices=["single", "batch", "remote"])
    p.add_argument("--json")
    a = p.parse_args()
    karat, results = Karat(a.karat, a.model, a.threads), []
    with tempfile.TemporaryDirectory() as folder:
        for name, part in (("single", single), ("batch", batch), ("remote", remote)):
            if a.only in (None, name):
                part(a, karat, folder, results)
    for r in results:
        print(r["what"] + " (" + r["unit"] + ")")
        for key, value in r["median"].items():
            print("  %-22s %10.2f" % (key, value))
        for key in r:
            if "/" in key or "slower" in key:
                print("  %-22s %10.3f" % (key, r[key]))
    if a.json:
        json.dump(results, open(a.json, "w"), indent=1)


if __name__ == "__main__":
    main()
