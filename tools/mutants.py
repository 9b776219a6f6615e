#!/usr/bin/env python3
"""Changes one line of an op or a method at a time and looks whether its tests notice.

    tools/mutants.py [--build DIR] [--jobs N] [NAME...]

Every mutant gets a folder of its own: a tree of links to the sources with one file changed, and a
copy of the built objects, so that make rebuilds what the change reaches and the tests named for it.
A mutant is killed when it does not compile, or a test fails, crashes or takes longer than LIMIT
seconds. Exit status 1: one survived, or the list no longer fits the sources.

Not listed, because no test can see them: prefetches, the order of independent work, sizes of blocks,
and tests of a `>` against `>=` where both sides lead to the same result.
"""
import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import time

LIMIT = 180

# name: (file, text that occurs once, its replacement, tests)
MUTANTS = {
    # ---- selection: order, ties, NaN, tails
    "select: ties beyond k": ("src/ops/select.c", "key == least && equal_left > 0", "key == least", "ops/select"),
    "select: one above the k-th": ("src/ops/select.c", "equal_left = a->k - (uint32_t)above",
                                   "equal_left = a->k - (uint32_t)above - 1", "ops/select"),
    "select: NaN competes": ("src/ops/select.c", "if (!isnan(a->score[i]) && (key & known) == prefix)",
                             "if ((key & known) == prefix)", "ops/select"),
    "select: NaN not counted": ("src/ops/select.c", "*a->nan_count += nan;", "", "ops/select"),
    "select: -0 below +0": ("src/ops/select.c", "kr_f32_bits(score + 0.0f)", "kr_f32_bits(score)", "ops/select"),
    "select avx512: last lanes read": ("src/ops/x86/select_topk_avx512.c",
                                       "left >= 16 ? 0xffff", "left >= 1 ? 0xffff",
                                       "ops/select"),
    "select avx512: ties from the end": ("src/ops/x86/select_topk_avx512.c",
                                         "mask &= (__mmask16) ~(0x80000000u >> __builtin_clz(mask));",
                                         "mask &= (__mmask16)(mask - 1);", "ops/select"),
    "select avx512: guess too high accepted": ("src/ops/x86/select_topk_avx512.c",
                                               "above.above + 16 > c.capacity || above.above + above.equal < a->k",
                                               "above.above + 16 > c.capacity", "ops/select"),
    "argmax: last of equals": ("src/ops/argmax.c", "if (score[i] > largest)", "if (score[i] >= largest)",
                               "ops/argmax"),
    "argmax lanes: rest dropped": ("src/ops/argmax_lanes.h", "    for (; i < n; i++)\n        largest",
                                   "    for (; i + 1 < n; i++)\n        largest", "ops/argmax"),

    # ---- scores
    "dsa_score: no ReLU": ("src/ops/dsa_score.c", "d < 0.0f ? 0.0f : d", "d", "ops/dsa_score"),
    "dsa_score: scale forgotten": ("src/ops/dsa_score.c",
                                   "chain[0] * a->scale[t / a->run_tokens][t % a->run_tokens]", "chain[0]",
                                   "ops/dsa_score"),
    "dsa_score lanes: run boundary": ("src/ops/dsa_score_lanes.h", "++at == a->run_tokens",
                                      "++at > a->run_tokens", "ops/dsa_score"),
    "dsa_score lanes: scale forgotten": ("src/ops/dsa_score_lanes.h", "lanes_sum16(s.chain[j]) * scale[j]",
                                         "lanes_sum16(s.chain[j]) * scale[0]", "ops/dsa_score"),
    "e4m3 avx512: sign": ("src/ops/x86/e4m3_avx512.h", "_mm512_set1_epi8((char)0x80)",
                          "_mm512_set1_epi8((char)0x00)", "ops/dsa_score"),
    "e4m3 avx2: NaN code": ("src/ops/x86/lanes_avx2.h", "_mm256_or_si256(sign, nan)", "sign", "ops/dsa_score"),
    "block_score: NaN lost": ("src/ops/block_score.c", "best > s || isnan(best) ? best : s",
                              "best > s ? best : s", "ops/score_rows"),
    "block_score: tail token read": ("src/ops/block_score.c", "left < a->block_tokens ? (uint32_t)left",
                                     "left + 1 < a->block_tokens ? (uint32_t)left + 1", "ops/score_rows"),
    "block_score lanes: masked lanes count": ("src/ops/block_score_lanes.h", "lane[i] = -INFINITY;",
                                              "lane[i] = lane[0] + 1.0f;", "ops/score_rows"),
    "row_dot: order of the fold": ("src/ops/row_dot.c", "half = CHAINS / 2; half > 0; half /= 2",
                                   "half = 1; half < CHAINS; half *= 2", "ops/score_rows"),
    "row_dot lanes: rest of dim": ("src/ops/row_dot_lanes.h",
                                   "    for (uint32_t c = 0; c < rest; c++)",
                                   "    for (uint32_t c = 0; c + 1 < rest; c++)", "ops/score_rows"),
    "row_dot avx512: fold's order": ("src/ops/x86/lanes_avx512.h",
                                     "_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11,",
                                     "_mm512_setr_epi32(0, 1, 2, 3, 8, 10, 9, 11,", "ops/score_rows"),
    "channel_dot lanes: tail vector": ("src/ops/channel_dot_lanes.h", "    for (; t < a->tokens; t++)",
                                       "    for (; t + 1 < a->tokens; t++)", "ops/score_rows"),
    "page_bounds: minimum kept wrong": ("src/ops/page_bounds.c", "if (k < TO_F32(low) || isnan(k))",
                                        "if (k < TO_F32(low))", "ops/page_bounds"),
    "page_score: smaller product": ("src/ops/page_bounds.c", "lane[c % TILE] += high > low ? high : low;",
                                    "lane[c % TILE] += high < low ? high : low;", "ops/page_bounds"),
    "softmax: rest weighs": ("src/ops/softmax_lanes.h", "a->score[whole + i] : -INFINITY",
                             "a->score[whole + i] : 0.0f", "ops/softmax"),
    "softmax: scale forgotten": ("src/ops/softmax.c", "(a->score[i] - maximum) * a->scale",
                                 "a->score[i] - maximum", "ops/softmax"),
    "softmax lanes: sums overwritten": ("src/ops/softmax_lanes.h",
                                        "a->add ? lanes_add(lanes_load(a->out + i), share) : share", "share",
                                        "ops/softmax"),

    # ---- attention
    "attend_rows: bias forgotten": ("src/ops/attend_rows.c", "score[i] += a->bias[i];",
                                    "score[i] += 0.0f;", "ops/attend_rows"),
    "attend_rows: mass forgotten": ("src/ops/attend_rows.c", "a->mass ? fmaf(a->mass[i], p, sum) : sum + p",
                                    "sum + p", "ops/attend_rows"),
    "attend_rows lanes: mask's end": ("src/ops/attend_rows_lanes.h", "i >= g->a->to[g->first_row + r]",
                                      "i > g->a->to[g->first_row + r]", "ops/attend_rows"),
    "attend_rows lanes: shift of -inf rows": ("src/ops/attend_rows_lanes.h",
                                              "maximum = lanes_max(maximum, lanes_set(-FLT_MAX));", "",
                                              "ops/attend_rows"),
    "attend_few: odd dim": ("src/ops/x86/attend_few_avx512.c", "d * halves + 1 < dims", "d * halves + 2 < dims",
                            "ops/attend_rows"),
    "attend_few: mask's begin": ("src/ops/x86/attend_few_avx512.c", "_mm512_cmpge_epu32_mask(at, from)",
                                 "_mm512_cmpgt_epu32_mask(at, from)", "ops/attend_rows"),
    "attend_few: even and odd dims": ("src/ops/x86/attend_few_avx512.c",
                                      "y = _mm512_permutex2var_ps(even, high, y);",
                                      "y = _mm512_permutex2var_ps(even, low, y), (void)high;",
                                      "ops/attend_rows"),
    "attend_few: weights of later blocks": ("src/ops/x86/attend_few_avx512.c", "total[r] = a->sum[first + r];",
                                            "total[r] = 0.0f;", "ops/attend_rows"),
    "attend_tiled lanes: ragged end": ("src/ops/attend_tiled_lanes.h",
                                       "common_to = a->to[r] < common_to ? a->to[r] : common_to;",
                                       "common_to = a->to[r];", "ops/attend_tiled"),
    "merge: maximum of the first": ("src/ops/attend_tiled.c",
                                    "next_maximum > *maximum ? next_maximum : *maximum", "*maximum",
                                    "ops/attend_tiled method/quest"),
    "merge: sum not rescaled": ("src/ops/attend_tiled.c", "*sum = *sum * scale + next_sum * next_scale;",
                                "*sum = *sum + next_sum * next_scale;", "ops/attend_tiled method/quest"),
    "lists: segments from the last": ("src/method/attend_list.c",
                                      "const float *next = partial_at(job, g, head);",
                                      "const float *next = partial_at(job, source->segments(&ref) - 1 - g, head);",
                                      "method/attend_list"),
    "lists: last unit whole": ("src/method/attend_list.c", "(visible - last < unit ? visible - last : unit)",
                               "(visible < last ? last : unit)", "method/msa method/properties method/trained"),
    "lists: window a token wider": ("src/method/attend_list.c", "position + 1 - shape->window : 0",
                                    "position - shape->window : 0", "method/attend_list"),
    "tiled: last unit whole": ("src/method/tiled.c", "(left < list.unit_tokens ? left : list.unit_tokens)",
                               "(left == 0 ? left : list.unit_tokens)", "method/quest"),

    # ---- index keys and methods
    "index key: amax floor": ("src/ops/index_key.c", "float amax = amax_floor;", "float amax = 0.0f * amax_floor;",
                              "ops/index_key"),
    "index key: Hadamard unscaled": ("src/ops/index_key.c", "x[i] *= 1.0f / sqrtf((float)dim);", ";",
                                     "ops/index_key"),
    "index key: RoPE's sign": ("src/ops/index_key.c", "(float)(first * c - second * s)",
                               "(float)(first * c + second * s)", "ops/index_key"),
    "dsa: scales of the page": ("src/method/native_dsa.c",
                                "memcpy(scales_of(job, token / KR_PAGE_TOKENS) + in_page, row + dim, sizeof(float));",
                                "", "method/dsa"),
    "msa: own block competes": ("src/method/native_msa.c", "score[blocks - 1] = INFINITY;", "", "method/msa"),
    "quest: newest page not taken": ("src/method/quest.c", "selected[count++] = (uint32_t)(units - 1);", ";",
                                     "method/quest"),
    "streamingllm: window": ("src/method/streamingllm.c", "t = visible - window;", "t = visible - window + 1;",
                             "method/training_free method/oracle"),
    "snapkv: pooling's reach": ("src/method/snapkv.c", "i <= t + reach", "i < t + reach", "method/oracle"),
    "h2o: evicted come back": ("src/method/h2o.c", "            sum[t] = 0.0f;", "            ;",
                               "method/oracle method/training_free"),
    "sparq: scale of the query": ("src/method/sparq.c", "picked / all", "all / picked", "method/oracle"),
    "sparq: mean value": ("src/method/sparq.c", "/ (float)(t + 1)", "/ (float)(t + 2)", "method/oracle"),
    "starc: order of equal clusters": ("src/method/starc.c", "score[cluster[mid]] >= score[c]",
                                       "score[cluster[mid]] > score[c]", "method/training_free"),
    "retroinfer: masses": ("src/method/retroinfer.c", "(float)(x.first[c + 1] - x.first[c])", "1.0f",
                           "method/training_free"),
    "magicpig: one table is enough": ("src/method/magicpig.c", "twice[i / 64] |= once[i / 64] & bit;",
                                      "twice[i / 64] |= bit;", "method/oracle method/training_free"),
    "magicpig: weight": ("src/method/magicpig.c", "tables * a * pow(1.0 - a, tables - 1.0)",
                         "a * pow(1.0 - a, tables - 1.0)", "method/training_free method/oracle"),
    "lserve: newest page": ("src/method/lserve.c", "choice[++choice[0]] = (uint32_t)(pages - 1);", ";",
                            "method/oracle method/training_free method/properties"),
    "moba: own chunk": ("src/method/moba.c", "selected[count++] = (uint32_t)own;", ";",
                        "method/oracle method/properties"),
    "infllm2: best of a block": ("src/method/infllm2.c", "sum[j] > rank[b] ? sum[j] : rank[b]", "sum[j]",
                                 "method/oracle method/training_free method/trained"),
    "seer: threshold": ("src/method/seer.c", "if (score[b] > threshold)", "if (score[b] < threshold)",
                        "method/trained"),
}


def links(tree, changed):
    """Makes the folders of the sources under tree, with links to all files but the changed one."""
    for folder, folders, files in os.walk("."):
        folders[:] = [f for f in folders if not f.startswith(".") and not (folder == "." and f.startswith("build"))]
        os.makedirs(os.path.join(tree, folder), exist_ok=True)
        for file in files:
            path = os.path.normpath(os.path.join(folder, file))
            if path != changed:
                os.symlink(os.path.abspath(path), os.path.join(tree, path))


def run(command, cwd, limit=900):
    try:
        return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return -1


def test_mutant(name, build):
    file, old, new, tests = MUTANTS[name]
    binaries = ["tests/" + t.replace("/", "/test_") for t in tests.split()]
    tree = os.path.join(build, "mutants", "".join(c if c.isalnum() else "-" for c in name))
    text = open(file).read()

    if text.count(old) != 1:
        return name, "STALE: %d places in %s" % (text.count(old), file), False
    shutil.rmtree(tree, ignore_errors=True)
    links(tree, file)
    with open(os.path.join(tree, file), "w") as f:
        f.write(text.replace(old, new))
    shutil.copytree(os.path.join(build, "src"), os.path.join(tree, "build", "src"))
    shutil.copytree(os.path.join(build, "tests"), os.path.join(tree, "build", "tests"),
                    ignore=lambda d, names: [n for n in names if n.startswith("test_") and "." not in n])
    shutil.copy2(os.path.join(build, "flags"), os.path.join(tree, "build", "flags"))
    verdict = "SURVIVED"
    if run(["make", "B=build"] + ["build/" + b for b in binaries], tree) != 0:
        verdict = "killed: does not build"
    else:
        for binary in binaries:
            if run(["build/" + binary], tree, LIMIT) != 0:
                verdict = "killed by " + binary
                break
    shutil.rmtree(tree)
    return name, verdict, verdict != "SURVIVED"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--build", default="build")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments.add_argument("names", nargs="*", help="part of the names; default: all")
    a = arguments.parse_args()
    chosen = [n for n in MUTANTS if not a.names or any(part in n for part in a.names)]
    tests = sorted({t for n in chosen for t in MUTANTS[n][3].split()})
    binaries = ["%s/tests/%s" % (a.build, t.replace("/", "/test_")) for t in tests]
    begin = time.time()

    if run(["make", "-j%d" % a.jobs, "B=" + a.build] + binaries, ".") != 0:
        sys.exit("mutants: the unchanged sources do not build")
    for binary in binaries:
        if run([binary], ".", LIMIT) != 0:
            sys.exit("mutants: %s fails on the unchanged sources" % binary)
    bad = 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for name, verdict, killed in pool.map(lambda n: test_mutant(n, a.build), chosen):
            print("%-45s %s" % (name, verdict), flush=True)
            bad += not killed
    print("%d mutants, %d killed, %.0f s" % (len(chosen), len(chosen) - bad, time.time() - begin))
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
