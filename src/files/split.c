/* Pre-tokenizer: cuts text into the words that are merged on their own.
 *
 * Only the patterns in the table below are used, whichever file names them: each has been looked
 * at to backtrack at most once over a run, so that a match costs time linear in what it consumes
 * and no stack, and a file cannot bring a pattern of its own that does not. PCRE2's match limit is
 * the second guard. Each rule is applied to every part that the rule before it left; text between
 * matches is a part of its own (the "Isolated" behaviour of tokenizer.json). */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/arena.h"
#include "files/tokenizer_impl.h"

struct kr_split {
    pcre2_code *code;
};

/* GPT-2's rule, with and without its last alternative: the text between matches says the same. */
#define GPT2_HEAD "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define GPT2 GPT2_HEAD "|\\s+"
/* cl100k's rule with digits in groups of up to three (Llama 3) or one by one (Qwen 2). */
#define CL100K_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define CL100K_TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 CL100K_HEAD "\\p{N}{1,3}" CL100K_TAIL
#define QWEN2 CL100K_HEAD "\\p{N}" CL100K_TAIL
#define DIGIT "\\p{N}"
#define DIGITS "\\p{N}+"
/* What llama.cpp applies when a file names "default" or nothing. */
#define PUNCTUATION "[\\p{P}\\$\\+<=>\\^~\\|]+"
#define THREE_DIGITS "[0-9][0-9][0-9]"

static const char *const known_pattern[] = {GPT2,  GPT2_HEAD, LLAMA3,      QWEN2,
                                            DIGIT, DIGITS,    PUNCTUATION, THREE_DIGITS};

/* GGUF's tokenizer.ggml.pre. */
static const struct {
    const char *name;
    const char *pattern[KR_SPLITS_MAX];
    bool whole_word_first, add_bos;
} known_name[] = {
    {"default", {PUNCTUATION, GPT2_HEAD, DIGITS, THREE_DIGITS}, false, false},
    {"gpt-2", {GPT2}, false, false},
    {"smollm", {DIGIT, GPT2}, false, false},
    {"llama-bpe", {LLAMA3}, true, true},
    {"llama3", {LLAMA3}, true, true},
    {"llama-v3", {LLAMA3}, true, true},
    {"qwen2", {QWEN2}, false, false},
    {"deepseek-r1-qwen", {QWEN2}, false, false},
};

static kr_status add_rule(kr_tokenizer *t, const char *pattern, const char *where, kr_err *err)
{
    int code;
    size_t offset;
    PCRE2_UCHAR text[128];

    if (t->splits == KR_SPLITS_MAX)
        return kr_fail(err, KR_E_UNSUPPORTED, "%s: more than %d pre-tokenizer rules", where, KR_SPLITS_MAX);
    kr_split *split = kr_alloc(sizeof *split);
    if (!split)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for a pre-tokenizer rule", where);
    split->code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code,
                                &offset, NULL);
    if (!split->code) {
        pcre2_get_error_message(code, text, sizeof text);
        kr_free(split);
        return kr_fail(err, KR_E_INTERNAL, "%s: PCRE2 refuses a pre-tokenizer rule: %s", where, (char *)text);
    }
    t->split[t->splits++] = split;
    return KR_OK;
}

kr_status kr_split_by_name(kr_tokenizer *tokenizer, kr_bytes name, const char *where, kr_err *err)
{
    for (size_t i = 0; i < sizeof known_name / sizeof known_name[0]; i++) {
        kr_status status = KR_OK;
        if (!kr_bytes_equal(name, kr_bytes_of(known_name[i].name)))
            continue;
        for (uint32_t p = 0; status == KR_OK && p < KR_SPLITS_MAX && known_name[i].pattern[p]; p++)
            status = add_rule(tokenizer, known_name[i].pattern[p], where, err);
        tokenizer->whole_word_first = known_name[i].whole_word_first;
        tokenizer->add_bos = known_name[i].add_bos;
        return status;
    }
    return kr_fail(
        err, KR_E_UNSUPPORTED,
        "%s: pre-tokenizer \"%.*s\" is not supported; known are default, gpt-2, smollm, llama-bpe, "
        "qwen2, deepseek-r1-qwen",
        where, (int)(name.bytes > 40 ? 40 : name.bytes), name.text);
}

kr_status kr_split_by_pattern(kr_tokenizer *tokenizer, kr_bytes pattern, const char *where, kr_err *err)
{
    for (size_t i = 0; i < sizeof known_pattern / sizeof known_pattern[0]; i++)
        if (kr_bytes_equal(pattern, kr_bytes_of(known_pattern[i])))
            return add_rule(tokenizer, known_pattern[i], where, err);
    return kr_fail(
        err, KR_E_UNSUPPORTED,
        "%s: pre-tokenizer pattern \"%.*s\" is not one of the supported (GPT-2, Llama 3, Qwen 2, digits)",
        where, (int)(pattern.bytes > 80 ? 80 : pattern.bytes), pattern.text);
}

void kr_split_free(kr_split *split)
{
    if (split)
        pcre2_code_free(split->code);
    kr_free(split);
}

typedef struct {
    const kr_tokenizer *tokenizer;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    kr_word_fn fn;
    void *context;
} splitter;

/* Applies rule `rule` and those after it; recursion is as deep as there are rules. */
static kr_status split_part(splitter *s, uint32_t rule, const char *text, uint32_t bytes, kr_err *err)
{
    size_t at = 0, done = 0; /* done: end of the last match */
    kr_status status = KR_OK;

    if (bytes == 0)
        return KR_OK;
    if (rule == s->tokenizer->splits)
        return s->fn(s->context, text, bytes, err);
    while (status == KR_OK && at < bytes) {
        const int found = pcre2_match(s->tokenizer->split[rule]->code, (PCRE2_SPTR)text, bytes, at,
                                      PCRE2_NO_UTF_CHECK, s->match, s->limits);
        if (found == PCRE2_ERROR_NOMATCH)
            break;
        if (found < 0)
            return kr_fail(err, KR_E_LIMIT,
                           "pre-tokenizer rule gave up at byte %zu of a text (PCRE2 error %d)", at, found);
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->match);
        if (span[1] == span[0])
            return kr_fail(err, KR_E_INTERNAL, "a pre-tokenizer rule matched nothing at byte %zu", at);
        const size_t begin = span[0], end = span[1]; /* the next rule overwrites span */
        status = split_part(s, rule + 1, text + done, (uint32_t)(begin - done), err);
        if (status == KR_OK)
            status = split_part(s, rule + 1, text + begin, (uint32_t)(end - begin), err);
        at = done = end;
    }
    return status == KR_OK ? split_part(s, rule + 1, text + done, bytes - (uint32_t)done, err) : status;
}

kr_status kr_split_text(const kr_tokenizer *tokenizer, const char *text, uint32_t bytes, kr_word_fn fn,
                        void *context, kr_err *err)
{
    splitter s = {tokenizer, NULL, NULL, fn, context};
    kr_status status;

    if (tokenizer->splits == 0)
        return bytes ? fn(context, text, bytes, err) : KR_OK;
    s.match = pcre2_match_data_create(1, NULL);
    s.limits = pcre2_match_context_create(NULL);
    if (s.match && s.limits) {
        /* One match may try each byte of the text a few times, and no more. */
        pcre2_set_match_limit(s.limits, 8 * bytes + 1000);
        pcre2_set_depth_limit(s.limits, 1000);
        status = split_part(&s, 0, text, bytes, err);
    } else {
        status = kr_fail(err, KR_E_MEMORY, "no memory for the pre-tokenizer");
    }
    pcre2_match_data_free(s.match);
    pcre2_match_context_free(s.limits);
    return status;
}
