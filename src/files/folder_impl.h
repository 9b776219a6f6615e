/* The parts of reading a Hugging Face folder: files and shards (folder.c), config.json
 * (folder_config.c). Nothing outside them includes this. */
#ifndef KR_FILES_FOLDER_IMPL_H
#define KR_FILES_FOLDER_IMPL_H

#include "base/json.h"
#include "files/model_file_impl.h"

/* Fills file->model from the parsed config.json (changed: nulls are dropped), with the tensor
 * table and name prefix already known. where names the file in messages. */
kr_status kr_folder_config(kr_model_file *file, json_t *config, const char *where, kr_err *err);
/* Its part for families with an indexer and experts (folder_indexed.c). */
kr_status kr_folder_config_indexed(kr_json config, kr_model *model, kr_err *err);

/* Keys whose presence (or any value but the given text) means math karat does not do. */
kr_status kr_folder_refuse(kr_json config, const char *key, const char *allowed, kr_err *err);
/* One set of rope parameters: "rope_parameters" (transformers 5) or "rope_scaling" (before it); yarn: whether
 * the family may have that scaling. */
kr_status kr_folder_rope(kr_json parameters, bool yarn, kr_rope *rope, kr_err *err);

#endif
