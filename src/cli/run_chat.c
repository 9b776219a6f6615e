/* `karat run --chat`: one session over many turns; only each turn's new tokens are run. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "cli/run.h"

enum { LINE_BYTES_MAX = 1 << 20 };

/* One line without its newline; false at the end of the input. */
static bool read_line(FILE *in, char *line, kr_status *status, kr_err *err)
{
    *status = KR_OK;
    if (fgets(line, LINE_BYTES_MAX, in) == NULL)
        return false;
    const size_t bytes = strlen(line);
    if (bytes == LINE_BYTES_MAX - 1 && line[bytes - 1] != '\n') {
        *status = kr_fail(err, KR_E_LIMIT, "a line of input is longer than %d bytes", LINE_BYTES_MAX - 2);
        return false;
    }
    line[strcspn(line, "\n")] = '\0';
    return true;
}

/* A reply that was cut at its length lacks the token that closes a turn, which the template counts
 * on. */
static kr_status close_turn(kr_run *run, kr_err *err)
{
    static const char *const closers[] = {
        [KR_CHAT_CHATML] = "<|im_end|>", [KR_CHAT_LLAMA3] = "<|eot_id|>", [KR_CHAT_GEMMA] = "<end_of_turn>"};
    uint64_t count;
    const uint32_t *token = kr_session_tokens(run->session[0], &count);
    const int64_t closer = kr_tokenizer_find(run->tokenizer, closers[run->family]);
    if (closer == KR_NO_TOKEN || kr_tokenizer_is_end(run->tokenizer, token[count - 1]))
        return KR_OK;
    const uint32_t id = (uint32_t)closer;
    return kr_session_append(run->session[0], &id, 1, err);
}

/* The first turn opens the session with room for the whole context. */
static kr_status add_turn(kr_run *run, const kr_run_prompt *turn, kr_err *err)
{
    if (run->session[0] != NULL) {
        kr_status status = close_turn(run, err);
        return status == KR_OK ? kr_session_append(run->session[0], turn->token, turn->count, err) : status;
    }
    const uint64_t context = run->config.context_max;
    const kr_session_request request = {
        .tokens = turn->token,
        .count = turn->count,
        .growth = turn->count < context ? context - turn->count : 0,
        .sampling = {(float)run->options->temperature, (float)run->options->top_p, run->options->seed}};
    return kr_session_open(run->engine, &request, &run->session[0], err);
}

static kr_status reply(kr_run *run, const char *user, kr_err *err)
{
    const bool first = run->session[0] == NULL;
    kr_run_prompt turn;
    kr_status status = kr_run_encode_turn(run->tokenizer, run->family, run->options->system, user, first,
                                          &turn, err);
    if (status != KR_OK)
        return status;
    status = add_turn(run, &turn, err);
    kr_free(turn.token);
    if (status != KR_OK)
        return status;
    uint64_t tokens;
    kr_session_tokens(run->session[0], &tokens);
    const uint64_t room = kr_session_limit(run->session[0]) - tokens;
    if (room == 0)
        return kr_fail(err, KR_E_LIMIT, "the context of %llu tokens is full; raise --ctx-size",
                       (unsigned long long)run->config.context_max);
    run->request[0] = (kr_request){.session = run->session[0],
                                   .tokens_max = room < run->options->tokens ? room : run->options->tokens};
    status = kr_generate(run->engine, run->request, 1, &run->generation, err);
    fputc('\n', stdout);
    fflush(stdout);
    return status;
}

kr_status kr_run_chat(kr_run *run, FILE *in, kr_err *err)
{
    char *line = kr_alloc(LINE_BYTES_MAX);
    if (line == NULL)
        return kr_fail(err, KR_E_MEMORY, "no memory for a line of input");
    kr_status status;
    for (;;) {
        if (run->show_progress)
            fputs("> ", stderr);
        if (!read_line(in, line, &status, err))
            break;
        if (line[0] == '\0')
            continue;
        status = reply(run, line, err);
        if (status != KR_OK)
            break;
    }
    kr_free(line);
    return status;
}
