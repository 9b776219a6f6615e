/* Writing a conversation in the markup of a known family.
 *
 * Markup is put as token ids, never as text, and everything else is encoded as plain text: the
 * role line and the message between two markup tokens are one stretch, as they are when the
 * reference renders the whole conversation and tokenizes it. So user text can spell a special
 * token and still is text, and the ids equal the reference's for all other texts. */
#include "files/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "files/chat_impl.h"
#include "files/model_file_impl.h"
#include "files/utf8.h"

#define CHOICES "--chat-template chatml|llama3|gemma"

static const struct {
    const char *name, *mark; /* mark: only this family's templates contain it */
    kr_chat_family family;
} families[] = {
    {"chatml", "<|im_start|>", KR_CHAT_CHATML},
    {"llama3", "<|start_header_id|>", KR_CHAT_LLAMA3},
    {"gemma", "<start_of_turn>", KR_CHAT_GEMMA},
};
enum { FAMILIES = sizeof families / sizeof families[0] };

const char *kr_chat_family_name(kr_chat_family family)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (families[i].family == family)
            return families[i].name;
    return "auto";
}

kr_status kr_chat_parse(const char *name, kr_chat_family *family, kr_err *err)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(name, families[i].name) == 0) {
            *family = families[i].family;
            return KR_OK;
        }
    if (strcmp(name, "auto") != 0)
        return kr_fail(err, KR_E_ARG, "unknown chat template \"%.40s\"; use " CHOICES, name);
    *family = KR_CHAT_AUTO;
    return KR_OK;
}

kr_status kr_chat_recognise(const kr_model_file *file, kr_chat_family *family, kr_err *err)
{
    uint32_t found = 0;

    if (!file->chat_template)
        return kr_fail(err, KR_E_NOT_FOUND, "%s has no chat template; choose one with " CHOICES, file->path);
    for (uint32_t i = 0; i < FAMILIES; i++)
        if (strstr(file->chat_template, families[i].mark))
            found |= 1u << i;
    for (uint32_t i = 0; i < FAMILIES; i++)
        if (found == 1u << i) {
            *family = families[i].family;
            return KR_OK;
        }
    return kr_fail(err, KR_E_UNSUPPORTED,
                   "the chat template of %s is not one karat knows; choose one with " CHOICES, file->path);
}

/* --- what a template says beside its markup --- */

/* The fixed system text of a ChatML template: what stands between the opening of a system turn and
 * its end, when that is plain text. A line end is written as such or as backslash n. */
static const char *default_system(const char *template, size_t *bytes)
{
    static const char open[] = "<|im_start|>system", end[] = "<|im_end|>";
    const char *at = template;

    while ((at = strstr(at, open)) != NULL) {
        at += sizeof open - 1;
        const char *text = *at == '\n' ? at + 1 : strncmp(at, "\\n", 2) == 0 ? at + 2 : NULL;
        const char *stop = text ? strstr(text, end) : NULL;
        if (stop && stop > text && strcspn(text, "'\"{}%\\<") == (size_t)(stop - text)) {
            *bytes = (size_t)(stop - text);
            return text;
        }
    }
    return NULL;
}

kr_status kr_chat_note_template(kr_tokenizer *tokenizer, const char *template, kr_err *err)
{
    size_t bytes = 0;
    const char *text = default_system(template, &bytes);

    tokenizer->dated_system = strstr(template, "Cutting Knowledge Date: December 2023") != NULL;
    if (!text)
        return KR_OK;
    tokenizer->default_system = kr_alloc(bytes + 1);
    if (!tokenizer->default_system)
        return kr_fail(err, KR_E_MEMORY, "no memory for a chat template's system text");
    memcpy(tokenizer->default_system, text, bytes);
    return KR_OK;
}

/* --- writing --- */

typedef struct {
    const kr_tokenizer *tokenizer;
    uint32_t *ids;
    size_t capacity, count;
    char *text; /* the stretch since the last mark, [room] */
    size_t bytes, room;
    kr_status status; /* the first failure; later calls do nothing */
    kr_err *err;
} writer;

static void say_bytes(writer *w, const char *text, size_t bytes)
{
    if (w->status != KR_OK || bytes == 0)
        return;
    if (bytes > w->room - w->bytes) {
        const size_t room = 2 * w->room + bytes + 256;
        char *grown = kr_realloc(w->text, room);
        if (!grown) {
            w->status = kr_fail(w->err, KR_E_MEMORY, "no memory for a message of %zu bytes", bytes);
            return;
        }
        w->text = grown;
        w->room = room;
    }
    memcpy(w->text + w->bytes, text, bytes);
    w->bytes += bytes;
}

static void say(writer *w, const char *text) { say_bytes(w, text, strlen(text)); }

static void flush(writer *w)
{
    if (w->status == KR_OK && w->bytes > 0)
        w->status = kr_tokenize(w->tokenizer, w->text, w->bytes, 0, w->ids, w->capacity, &w->count, w->err);
    w->bytes = 0;
}

static void put(writer *w, uint32_t id)
{
    flush(w);
    if (w->status == KR_OK && w->count == w->capacity)
        w->status = kr_fail(w->err, KR_E_LIMIT, "the conversation has more than %zu tokens", w->capacity);
    if (w->status == KR_OK)
        w->ids[w->count++] = id;
}

static void mark(writer *w, const char *piece)
{
    const int64_t id = kr_tokenizer_find(w->tokenizer, piece);

    if (w->status == KR_OK && id == KR_NO_TOKEN)
        w->status = kr_fail(w->err, KR_E_UNSUPPORTED,
                            "the vocabulary has no token %s; choose another chat template with " CHOICES,
                            piece);
    put(w, (uint32_t)id);
}

static void begin(writer *w, bool always)
{
    if ((always || w->tokenizer->add_bos) && w->tokenizer->bos != KR_SPAN_NONE)
        put(w, w->tokenizer->bos);
}

/* White space as Python's str.strip has it, which is what a template's trim does. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

static void say_trimmed(writer *w, const char *text)
{
    size_t from = 0, to = 0; /* to: after the last character that is no space */
    uint32_t n;

    while (text[from] && is_space(kr_utf8_decode(text + from, &n)))
        from += n;
    for (size_t at = from; text[at]; at += n)
        if (!is_space(kr_utf8_decode(text + at, &n)))
            to = at + n;
    if (to > from)
        say_bytes(w, text + from, to - from);
}

static bool is_role(const kr_chat_message *m, const char *role) { return strcmp(m->role, role) == 0; }

static void chatml_turn(writer *w, const char *role, const char *text)
{
    mark(w, "<|im_start|>");
    say(w, role);
    say(w, "\n");
    say(w, text);
    mark(w, "<|im_end|>");
    say(w, "\n");
}

static void chatml(writer *w, const kr_chat_message *m, size_t count, bool first, bool open_reply)
{
    if (first)
        begin(w, false);
    else
        say(w, "\n");
    if (first && w->tokenizer->default_system && !(count > 0 && is_role(&m[0], "system")))
        chatml_turn(w, "system", w->tokenizer->default_system);
    for (size_t i = 0; i < count; i++)
        chatml_turn(w, m[i].role, m[i].text);
    if (open_reply) {
        mark(w, "<|im_start|>");
        say(w, "assistant\n");
    }
}

static void llama3_header(writer *w, const char *role)
{
    mark(w, "<|start_header_id|>");
    say(w, role);
    mark(w, "<|end_header_id|>");
    say(w, "\n\n");
}

static void llama3(writer *w, const kr_chat_message *m, size_t count, bool first, bool open_reply)
{
    const bool dated = first && w->tokenizer->dated_system;
    size_t i = 0;

    if (first)
        begin(w, true);
    if (dated) { /* the template's own default date, so that a prompt does not change by the day */
        llama3_header(w, "system");
        say(w, "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n");
        if (count > 0 && is_role(&m[0], "system"))
            say_trimmed(w, m[i++].text);
        mark(w, "<|eot_id|>");
    }
    for (; i < count; i++) {
        llama3_header(w, m[i].role);
        say_trimmed(w, m[i].text);
        mark(w, "<|eot_id|>");
    }
    if (open_reply)
        llama3_header(w, "assistant");
}

/* Gemma has no system turn: that text opens the first user turn. */
static void gemma(writer *w, const kr_chat_message *m, size_t count, bool first, bool open_reply)
{
    const bool lead = first && count > 1 && is_role(&m[0], "system");

    if (first)
        begin(w, true);
    else
        say(w, "\n");
    for (size_t i = lead ? 1 : 0; i < count; i++) {
        if (is_role(&m[i], "system"))
            w->status = kr_fail(
                w->err, KR_E_ARG,
                "message %zu: Gemma's chat template takes a system text only before a first user "
                "message",
                i);
        mark(w, "<start_of_turn>");
        say(w, is_role(&m[i], "assistant") ? "model\n" : "user\n");
        if (lead && i == 1) {
            say(w, m[0].text);
            say(w, "\n\n");
        }
        say_trimmed(w, m[i].text);
        mark(w, "<end_of_turn>");
        say(w, "\n");
    }
    if (open_reply) {
        mark(w, "<start_of_turn>");
        say(w, "model\n");
    }
}

static kr_status check_messages(const kr_chat_message *m, size_t count, kr_err *err)
{
    for (size_t i = 0; i < count; i++) {
        const size_t bytes = strlen(m[i].text), bad = kr_utf8_invalid(m[i].text, bytes);
        if (!is_role(&m[i], "system") && !is_role(&m[i], "user") && !is_role(&m[i], "assistant"))
            return kr_fail(err, KR_E_ARG, "message %zu: role \"%.40s\" is not system, user or assistant", i,
                           m[i].role);
        if (bad < bytes)
            return kr_fail(err, KR_E_FORMAT, "message %zu is not valid UTF-8: byte 0x%02x at offset %zu", i,
                           (unsigned)(uint8_t)m[i].text[bad], bad);
    }
    return KR_OK;
}

kr_status kr_chat_encode(const kr_tokenizer *tokenizer, kr_chat_family family,
                         const kr_chat_message *messages, size_t count, int first, int open_reply,
                         uint32_t *ids, size_t capacity, size_t *written, kr_err *err)
{
    const kr_status checked = check_messages(messages, count, err);
    if (checked != KR_OK) /* nothing below may walk text that is not UTF-8 */
        return checked;

    writer w = {.tokenizer = tokenizer, .capacity = capacity, .count = *written, .err = err};
    w.ids = ids;
    switch (family) {
    case KR_CHAT_CHATML:
        chatml(&w, messages, count, first, open_reply);
        break;
    case KR_CHAT_LLAMA3:
        llama3(&w, messages, count, first, open_reply);
        break;
    case KR_CHAT_GEMMA:
        gemma(&w, messages, count, first, open_reply);
        break;
    case KR_CHAT_AUTO:
        w.status = kr_fail(err, KR_E_ARG, "no chat template chosen; use " CHOICES);
        break;
    }
    flush(&w);
    kr_free(w.text);
    if (w.status == KR_OK)
        *written = w.count;
    return w.status;
}
