/* The parts of reading a Hugging Face folder: files and shards (folder.c), config.json
 * (folder_config.c). Nothing outside them includes this. */
#ifndef KR_FILES_FOLDER_IMPL_H
#define KR_FILES_FOLDER_IMPL_H

#include <jansson.h>

#include "files/model_file_impl.h"

/* Fills file->model from the parsed config.json (changed: nulls are dropped), with the tensor
 * table and name prefix already known. where names the file in messages. */
kr_status kr_folder_config(kr_model_file *file, json_t *config, const char *where, kr_err *err);

#endif
