/* The parts of `karat run`: its options, the prompts, the engine it starts, and what it prints. */
#ifndef KR_CLI_RUN_H
#define KR_CLI_RUN_H

#include <jansson.h>

#include "cli/nodes.h"
#include "cli/options.h"
#include "engine/generate.h"
#include "files/chat.h"
#include "files/tokenizer.h"
#include "node/embedded.h"

/* Fields are named as the options are; 0 or NULL = chosen by the command. */
typedef struct {
    const char *prompt, *prompt_file, *system, *chat_template, *key_file, *save_folder, *save, *restore;
    const char *record, *trace, *dump_selection, *attention, *kv_dtype, *placement;
    kr_option_strings attention_layers, memory_node;
    uint64_t tokens, ctx_size, memory, seed;
    uint32_t sessions, budget, attention_mode, dense_layers, threads, device_threads, devices, prefill_chunk;
    uint32_t micro_batches;
    int transport; /* kr_ucx_transport */
    double temperature, top_p, timeout;
    bool chat, instruct, ignore_end, weights_f32, json, dry_run, progress;
} kr_run_options;

/* Parses argv; false: return *status. */
bool kr_run_parse(int argc, char **argv, kr_run_options *options, char ***rest, int *rest_count, int *status);
/* Method of each layer from --attention, --attention-layers, --budget, ...; configs [layers]. */
kr_status kr_run_methods(const kr_run_options *options, uint32_t layers, kr_method_config *configs,
                         kr_err *err);

/* ---- prompts: text in, token ids out ---- */

typedef struct {
    uint32_t *token; /* [count] */
    uint64_t count;
} kr_run_prompt;

typedef struct {
    kr_run_prompt *prompt; /* [count] */
    uint32_t count;
} kr_run_prompts;

/* From the arguments after the model, --prompt, and --prompt-file (blocks separated by lines "---").
 * family: template of --instruct. KR_E_ARG when none is given or one is empty. */
kr_status kr_run_read_prompts(const kr_run_options *options, char **texts, int text_count,
                              const kr_tokenizer *tokenizer, kr_chat_family family, kr_run_prompts *prompts,
                              kr_err *err);
void kr_run_free_prompts(kr_run_prompts *prompts);
/* Plain text to ids in *out (caller frees with kr_free). first: the session starts here. */
kr_status kr_run_encode(const kr_tokenizer *tokenizer, const char *text, size_t bytes, bool first,
                        kr_run_prompt *out, kr_err *err);
/* One user turn through the template. first: the conversation starts here. */
kr_status kr_run_encode_turn(const kr_tokenizer *tokenizer, kr_chat_family family, const char *system,
                             const char *user, bool first, kr_run_prompt *out, kr_err *err);

/* ---- the run ---- */

typedef struct {
    const kr_run_options *options;
    const char *model_path;
    kr_model_file *file;
    const kr_tokenizer *tokenizer;
    kr_chat_family family; /* with --chat or --instruct; never KR_CHAT_AUTO */
    kr_run_prompts prompts;
    kr_method_config method[KR_LAYERS_MAX];
    kr_engine_config config;
    kr_embedded embedded, gather;                 /* started or all zero */
    kr_engine_node node[KR_ENGINE_NODES_MAX + 1]; /* [config.node_count], then the gather node */
    kr_engine *engine;
    kr_session **session; /* [config.sessions_max] */
    kr_request *request;
    kr_generation generation;
    FILE *selection, *record, *trace; /* --dump-selection, --record, --trace, or NULL */
    bool show_progress, stream;       /* stream: text goes out token by token */
    uint64_t shown_ns;                /* when progress was last shown */
    uint64_t planned_bytes;           /* of this process: the plan's classes that live here */
    uint64_t resident_before;         /* kr_run_resident when the model's description and prompts were read */
} kr_run;

/* Reads user lines and prints replies until the input ends. */
kr_status kr_run_chat(kr_run *run, FILE *in, kr_err *err);

/* ---- output ---- */
/* Bytes of this process in memory that are no file's: what allocation costs. */
uint64_t kr_run_resident(void);
/* Bytes and FLOPs by class, before anything large is allocated. */
int kr_run_print_plan(const kr_run *run, const kr_engine_needs *needs);
/* Text of the tokens after the prompt; *bytes without a final NUL; caller frees with kr_free. */
char *kr_run_text(const kr_run *run, const kr_session *session, uint64_t from, size_t *bytes);
void kr_run_print_token(const kr_run *run, uint32_t token);
void kr_run_print_texts(const kr_run *run);
int kr_run_print_json(kr_run *run);
void kr_run_print_summary(kr_run *run);
void kr_run_write_selection(void *context, const kr_selection *selection);
void kr_run_show_prefill(void *context, uint64_t done, uint64_t all);
void kr_run_show_packing(void *context, uint32_t done, uint32_t all);
/* The files that --dump-selection, --record and --trace name: made before anything runs, so that one
 * that cannot be is known then; written and closed after it. kr_run_close_files closes what is open. */
kr_status kr_run_open_files(kr_run *run, kr_err *err);
kr_status kr_run_write_files(kr_run *run, kr_err *err);
void kr_run_close_files(kr_run *run);

#endif
