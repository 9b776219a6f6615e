/* A saved session as saved.c read it and saved_print.c prints it. */
#ifndef KR_STORE_SAVED_IMPL_H
#define KR_STORE_SAVED_IMPL_H

#include "store/save_format.h"
#include "store/saved.h"

typedef struct {
    kr_save_reader reader;
    kr_save_header header;
    kr_save_layer layer[KR_LAYERS_MAX];
    kr_record_header record[KR_LAYERS_MAX];
    kr_boundary *boundary; /* [header.boundaries] */
    uint64_t tokens;       /* of the longest layer */
    uint64_t file_bytes, unpacked, frames;
} kr_saved;

/* KR_E_IO when out takes no more. */
kr_status kr_saved_print(const kr_saved *saved, FILE *out, kr_err *err);
kr_status kr_saved_print_json(const kr_saved *saved, FILE *out, kr_err *err);

#endif
