/* The inside of an open model file, shared by the readers of its two forms. Nothing outside
 * src/files includes this. */
#ifndef KR_FILES_MODEL_FILE_IMPL_H
#define KR_FILES_MODEL_FILE_IMPL_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "files/gguf.h"
#include "files/model_file.h"
#include "files/tensor_table.h"
#include "files/tokenizer_impl.h"

enum { KR_PARTS_MAX = 4096, KR_NAME_PREFIX_MAX = 64 };

typedef enum { KR_FORM_GGUF, KR_FORM_FOLDER } kr_file_form;

struct kr_model_file {
    char path[PATH_MAX]; /* as given */
    kr_file_form form;
    kr_gguf *gguf; /* [gguf_count] parts of a GGUF file; metadata is in part 0 */
    char (*gguf_path)[PATH_MAX];
    uint32_t gguf_count;
    kr_map *shard; /* [shard_count] safetensors files */
    uint32_t shard_count;
    kr_tensor_table tensors;
    char name_prefix[KR_NAME_PREFIX_MAX]; /* before "layers.0." in a folder: "model.", ... */
    kr_model model;
    uint64_t fingerprint;
    kr_tokenizer *tokenizer;
    char *chat_template; /* Jinja text, NUL-terminated; NULL = none */
};

/* --- form readers: fill parts, tensors, model (without what tensors tell), tokenizer, template --- */

kr_status kr_gguf_model_open(kr_model_file *file, kr_err *err);
kr_status kr_folder_open(kr_model_file *file, kr_err *err);

/* --- roles (roles.c) --- */

/* What the names of SeerAttention-R's tensors have in common. */
#define KR_GATE_TENSORS ".self_attn.attn_gate."

typedef struct {
    uint64_t rows, columns;
} kr_role_shape;

/* Whether the architecture has this role, in this layer if it is a layer's. */
bool kr_role_used(const kr_model *model, kr_role role, uint32_t layer);
const char *kr_role_name(kr_role role); /* "KR_ROLE_Q" */
kr_role_shape kr_role_shape_of(const kr_model *model, kr_role role);
/* The name the tensor of a role has in this file, into name[size]; only experts' roles have one by expert. */
void kr_role_tensor_name(const kr_model_file *file, kr_role role, uint32_t layer, uint32_t expert, char *name,
                         size_t size);
/* KR_E_UNSUPPORTED when karat cannot compute with the tensor's type, or read it where it lies. */
kr_status kr_tensor_usable(const kr_model_file *file, const kr_tensor_entry *entry, kr_err *err);
/* Every used role is there with its shape, and the layers hold no tensor without a role (it would
 * be silently ignored: a bias, a scale, an expert). */
kr_status kr_roles_check(const kr_model_file *file, kr_err *err);

/* A kr_model of one of the families with everything unset that the file must say. */
void kr_model_start(kr_model *model, kr_family family, uint32_t layers);
/* As much of name as fits and is valid UTF-8. */
void kr_model_set_name(kr_model *model, kr_bytes name);
/* KR_E_UNSUPPORTED with the supported list when name, as files of this form have it, is unknown. */
kr_status kr_family_of(const char *path, kr_file_form form, kr_bytes name, kr_family *family, kr_err *err);

#endif
