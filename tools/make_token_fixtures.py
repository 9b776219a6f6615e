#!/usr/bin/env python3
"""Writes tests/fixtures/tokens/*.json: token ids of hard texts and of conversations, by Hugging
Face's tokenizers and by llama.cpp.

    python3 tools/make_token_fixtures.py TINY OUT LLAMA_TOKENIZE [SMOLLM2.gguf GEMMA.gguf]

TINY: tests/fixtures/tiny (their tokenizer.json, by tokenizers and transformers).
LLAMA_TOKENIZE: the program of tools/llama_tokenize.c; with it the two real vocabularies, and the
tiny GGUF files, are tokenized by llama.cpp. SmolLM2's ids also come from tokenizers, built from the
vocabulary in the GGUF file with the pre-tokenizer its tokenizer.json has; the script stops where
the two disagree. Made with tokenizers 0.23.3, transformers 5.24.0, llama.cpp of llama-cpp-python 0.3.36.

OUT/spm.gguf is a vocabulary alone, of kind "llama" (SentencePiece pieces with scores) with a space
put before the text, as Llama 2 has it; its ids are llama.cpp's. prefix-*.json are the tiny Gemma
tokenizer with the normalizer and pre-tokenizer that the name says (VARIANTS; the test edits
tokenizer.json alike).

Each file: {"cases": [{"text", "plain": ids without special tokens, "special": ids with them}],
"chats": [{"messages", "ids": the whole prompt, reply opened}]}.
"""

import itertools
import json
import os
import random
import subprocess
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SPECIALS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<bos>",
    "<eos>",
    "<unused0>",
    "<0x41>",
    "[multimodal]",
    "<table>",
]


def texts():
    yield from [
        "a",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\n\n\n",
        "\t",
        "\r\n",
        " \n",
        "\n ",
        "  \n  \n",
        "   x",
        "x   ",
        "x \n y",
        "\u00a0x",
        "\u3000x\u3000",
        "\u2003\u2003y",
        "\u200b",
        "\ufeffBOM",
        "a\u0085b",
        "\x0b\x0c",
        "\x1c\x1d",
        "\x7f",
        "\x01\x02",
    ]
    yield from [
        "Hello world",
        " Hello",
        "Hello, world!",
        "HELLO",
        "don't I'll we've they're she's I'm he'd",
        "DON'T I'LL WE'VE",
        "'s't're've'm'll'd",
        "''''",
        '"quoted"',
        "it's 'single'",
        "can’t won’t",
    ]
    yield from [
        "0",
        "1",
        "12",
        "123",
        "1234",
        "12345678901234567890",
        "3.14159",
        "1,000,000",
        "0x1F",
        "1e-10",
        "٣٤٥",
        "१२३",
        "²³¹",
        "Ⅳ",
        "½",
        "x1y2z3",
        "2026-11-30T23:59:59Z",
        "#42",
        "100%",
        "$9.99",
        "1st 2nd",
    ]
    yield from [
        "int main(void)\n{\n    return 0;\n}\n",
        "for (i = 0; i < n; i++)\n\t\tsum += a[i];\n",
        "def f(x):\n        return x**2  # square\n",
        "a->b::c.d[e]{f}",
        "!=<=>===&&||++--//**",
        '<html><body class="x">&amp;</body></html>',
        "\\n\\t\\u0041",
        "C:\\path\\to",
        "/usr/bin/env -S a=b",
        "https://example.org/a?b=c&d=%20e#f",
        "user@example.org",
        '{"k": [1, 2.5, null, true]}',
        "SELECT * FROM t WHERE a = 'b';",
        "snake_case camelCase kebab-case",
        "    indented\n        more\n",
    ]
    yield from [
        "Größe straße ÄÖÜ",
        "naïve café résumé",
        "Ελληνικά κείμενο",
        "русский текст",
        "日本語のテキスト",
        "中文文本，标点。",
        "한국어 텍스트",
        "العربية نص",
        "עברית",
        "हिन्दी पाठ",
        "ไทยภาษา",
        "Tiếng Việt",
        "Türkçe ığş",
        "Íslenska þæö",
        "ქართული",
        "Հայերեն",
        "አማርኛ",
        "தமிழ்",
        "ʻokina",
        "ﬁ ligature ﬀ",
        "ǅ ǈ",
        "ẞ",
        "İstanbul",
    ]
    yield from [
        "🙂",
        "🙂🙂🙂",
        "👩‍👩‍👧‍👦",
        "🇩🇪🇫🇷",
        "👍🏽",
        "x🙂y",
        " 🙂 ",
        "❤️",
        "𝔘𝔫𝔦",
        "𠀀𠀁",
        "🏴󠁧󠁢󠁥󠁮󠁧󠁿",
        "☃☂★",
        "→←↑↓",
        "∑∫√∞≠",
        "—–-‐",
        "…",
        "“”‘’«»",
        "©®™",
        "€£¥",
        "\u202eRTL\u202c",
        "\U0010ffff",
        "\ue000",
    ]
    yield from [
        "e\u0301",
        "a\u0308\u0323",
        "a\u0323\u0308",
        "\u1e9b\u0323",
        "\u0301",
        "x\u0301\u0301\u0301",
        "\u212b",
        "\u2126",
        "\uf900",
        "\u1100\u1161\u11a8",
        "\uac00\u11a8",
        "q\u0307\u0323",
        "\u0344",
        "\u0958",
        "ö",
        "o\u0308",
        "\u0041\u030a",
        "\u1112\u1161\u11ab\u1100\u1173\u11af",
    ]
    for s in SPECIALS:
        yield from [s, "a" + s + "b", " " + s + " ", s + s, s[:-1], "x\n" + s + "\ny"]
    yield "<|im_start|>user\nIgnore this<|im_end|>\n<|im_start|>assistant\n"
    yield "<|<|im_start|>|>"
    yield "▁ ▁▁ x▁y"
    for n in (2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100):
        yield from [
            " " * n,
            "\n" * n,
            "a" * n,
            "Z" * n,
            "=" * n,
            "9" * n,
            "日" * n,
            "\t" * n,
            " \n" * n,
            "ab" * n,
            " " * n + "x",
            "\u0301" * n,
            "🙂" * n,
        ]
    rng = random.Random(20261130)
    alphabet = list("abcdefgh eeeett  \n\n\t\r.,;:'\"!?()[]{}0123456789ABCZ-_/\\") + list(
        "äßéñçøΩжя日本語한글עع\u0301\u0308\u200d🙂👍\u00a0\u3000𝔘"
    )
    for _ in range(120):
        yield "".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 60)))


CHATS = [
    [("user", "Hello")],
    [("system", "Be brief."), ("user", "What is 2+2?")],
    [("user", "Hi"), ("assistant", "Hello! How can I help?"), ("user", "Tell me\n\na joke.")],
    [("system", "Sprich Deutsch."), ("user", "Größe?"), ("assistant", "12"), ("user", "日本語 🙂")],
    [("user", "  leading and trailing  \n\n")],
    [("user", "\n\nnew lines first")],
    [("user", "12 + 34 = ?"), ("assistant", "46\n"), ("user", "ok")],
]


def chats(tok):
    out = []
    for chat in CHATS:
        messages = [dict(role=r, content=c) for r, c in chat]
        text = tok.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tok(text, add_special_tokens=False)["input_ids"]
        out.append(dict(messages=messages, ids=ids))
    return out


def by_tokenizers(tok, special):
    """tok: a tokenizers.Tokenizer. encode_special_tokens: spell special tokens out."""
    tok.encode_special_tokens = not special
    return [tok.encode(t, add_special_tokens=False).ids for t in TEXTS]


def by_llama(program, gguf, special):
    data = b"".join(t.encode() + b"\0" for t in TEXTS)
    out = subprocess.run(
        [program, gguf, str(int(special))], input=data, stdout=subprocess.PIPE, check=True
    ).stdout
    return [[int(x) for x in line.split()] for line in out.decode().splitlines()]


def write(out, name, plain, special, conversations=()):
    cases = [dict(text=t, plain=p, special=s) for t, p, s in zip(TEXTS, plain, special, strict=True)]
    with open(os.path.join(out, name + ".json"), "w") as f:
        f.write('{"cases": [\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in cases))
        f.write('\n], "chats": [\n')
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c in conversations))
        f.write("\n]}\n")


def smollm2_tokenizer(gguf):
    from gguf import GGUFReader

    fields = GGUFReader(gguf).fields
    get = lambda key: fields["tokenizer." + key].contents()
    pieces, kinds = get("ggml.tokens"), get("ggml.token_type")
    tok = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)},
            merges=[tuple(m.split(" ")) for m in get("ggml.merges")],
        )
    )
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tok.add_special_tokens(
        [AddedToken(p, special=True, normalized=False) for p, k in zip(pieces, kinds) if k == 3]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, clean_up_tokenization_spaces=False)
    fast.chat_template = get("chat_template")
    return tok, fast


VARIANTS = {
    "prepend": dict(
        normalizer=dict(
            type="Sequence",
            normalizers=[
                dict(type="Prepend", prepend="▁"),
                dict(type="Replace", pattern={"String": " "}, content="▁"),
            ],
        ),
        pre_tokenizer=None,
    ),
    "first": dict(
        normalizer=None,
        pre_tokenizer=dict(type="Metaspace", replacement="▁", prepend_scheme="first", split=False),
    ),
    "always": dict(
        normalizer=None,
        pre_tokenizer=dict(type="Metaspace", replacement="▁", prepend_scheme="always", split=False),
    ),
}


def variants(tiny):
    for name, change in VARIANTS.items():
        with open(os.path.join(tiny, "gemma3", "tokenizer.json")) as f:
            config = json.load(f)
        yield name, Tokenizer.from_str(json.dumps({**config, **change}))


def write_spm(tiny, path):
    """The tiny Gemma pieces with scores instead of merges: earlier pieces score higher."""
    from gguf import GGUFWriter

    with open(os.path.join(tiny, "gemma3", "tokenizer.json")) as f:
        config = json.load(f)
    vocab = config["model"]["vocab"]
    kinds = {t["id"]: 3 if t["special"] else 4 for t in config["added_tokens"]}
    pieces = sorted(vocab, key=vocab.get)
    w = GGUFWriter(path, "llama")
    for key, n in [
        ("block_count", 1),
        ("context_length", 64),
        ("embedding_length", 64),
        ("feed_forward_length", 64),
        ("attention.head_count", 1),
    ]:
        w.add_uint32("llama." + key, n)
    w.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    w.add_tokenizer_model("llama")
    w.add_token_list(pieces)
    w.add_token_scores([0.0 if i in kinds else -float(i) for i in range(len(pieces))])
    w.add_token_types([kinds.get(i, 6 if p.startswith("<0x") else 1) for i, p in enumerate(pieces)])
    w.add_bos_token_id(vocab["<bos>"])
    w.add_eos_token_id(vocab["<eos>"])
    w.add_unk_token_id(vocab["<unk>"])
    w.add_add_space_prefix(True)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def compare(name, a, b):
    """Cases on which two references disagree: shown, and left out of the fixture."""
    differ = {i for i, (x, y) in enumerate(zip(a, b)) if x != y}
    for i in sorted(differ):
        print(name, "references disagree on", repr(TEXTS[i]), a[i], b[i])
    return differ


if __name__ == "__main__":
    tiny, out, program = sys.argv[1:4]
    TEXTS = list(dict.fromkeys(texts()))
    os.makedirs(out, exist_ok=True)
    for name in ("llama", "llama3", "qwen2", "gemma3"):
        fast = AutoTokenizer.from_pretrained(os.path.join(tiny, name))
        tok = Tokenizer.from_file(os.path.join(tiny, name, "tokenizer.json"))
        write(out, "tiny-" + name, by_tokenizers(tok, False), by_tokenizers(tok, True), chats(fast))
        gguf = os.path.join(tiny, name + ".gguf")
        if os.path.exists(gguf):
            compare("tiny-" + name, by_tokenizers(tok, False), by_llama(program, gguf, False))
    for name, tok in variants(tiny):
        write(out, "prefix-" + name, by_tokenizers(tok, False), by_tokenizers(tok, True))
    spm = os.path.join(out, "spm.gguf")
    write_spm(tiny, spm)
    write(out, "spm", by_llama(program, spm, False), by_llama(program, spm, True))
    if len(sys.argv) > 4:
        tok, fast = smollm2_tokenizer(sys.argv[4])
        for special in (False, True):
            compare("smollm2", by_tokenizers(tok, special), by_llama(program, sys.argv[4], special))
        write(out, "smollm2", by_tokenizers(tok, False), by_tokenizers(tok, True), chats(fast))
        write(out, "gemma3-270m", by_llama(program, sys.argv[5], False), by_llama(program, sys.argv[5], True))
