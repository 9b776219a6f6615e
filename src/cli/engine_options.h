/* Rows of options that commands share which start an engine or meet a memory node: the same name, range
 * and meaning everywhere. offset is the field's in the command's own struct; text is the help where a
 * command says more. */
#ifndef KR_CLI_ENGINE_OPTIONS_H
#define KR_CLI_ENGINE_OPTIONS_H

#include "base/team.h"
#include "cli/nodes.h"
#include "cli/options.h"
#include "engine/engine.h"

/* clang-format off */
#define KR_OPTION_KV_DTYPE(offset, text)                                                                \
    {.name = "kv-dtype", .alias = "kv-cache-dtype", .type = KR_OPT_STRING, .at = (offset),              \
     .value = "TYPE", .help = (text)}

#define KR_OPTION_METHODS(offset, text)                                                                 \
    {.name = "methods", .alias = "attention", .letter = 'a', .type = KR_OPT_STRINGS, .at = (offset),    \
     .value = "METHOD,...", .help = (text)}

#define KR_OPTION_BUDGETS(offset)                                                                       \
    {.name = "budgets", .alias = "budget", .letter = 'b', .type = KR_OPT_SIZES, .at = (offset),         \
     .min = 1, .max = 8192, .value = "TOKENS,...", .help = "tokens a query attends to"}

#define KR_OPTION_DENSE_LAYERS(offset)                                                                  \
    {.name = "dense-layers", .type = KR_OPT_U32, .at = (offset), .max = KR_LAYERS_MAX, .value = "N",    \
     .help = "first layers that stay dense (default: the method's)"}

#define KR_OPTION_THREADS(offset, text)                                                                 \
    {.name = "threads", .letter = 't', .type = KR_OPT_U32, .at = (offset), .min = 1,                    \
     .max = KR_TEAM_THREADS_MAX, .value = "N", .help = (text)}

#define KR_OPTION_PREFILL_CHUNK(offset)                                                                 \
    {.name = "prefill-chunk", .alias = "max-num-batched-tokens", .type = KR_OPT_U32, .at = (offset),    \
     .min = 1, .max = KR_ENGINE_ROWS_MAX, .value = "TOKENS",                                            \
     .help = "prompt tokens of a micro-batch in one step"}

#define KR_OPTION_WEIGHTS_F32(offset)                                                                   \
    {.name = "weights-f32", .type = KR_OPT_FLAG, .at = (offset),                                        \
     .help = "expand weights to F32, for comparisons"}

#define KR_OPTION_KEY_FILE(offset, text)                                                                \
    {.name = "key-file", .type = KR_OPT_STRING, .at = (offset), .value = "FILE", .help = (text)}

#define KR_OPTION_TRANSPORT(offset, text)                                                               \
    {.name = "transport", .type = KR_OPT_CHOICE, .at = (offset), .choices = kr_cli_transports,          \
     .value = "KIND", .help = (text)}
/* clang-format on */

#endif
