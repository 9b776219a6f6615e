/* A model from a Hugging Face folder. */
#include "files/model_file_impl.h"

kr_status kr_folder_open(kr_model_file *file, kr_err *err)
{
    return kr_fail(err, KR_E_UNSUPPORTED, "%s: Hugging Face folders are not read yet", file->path);
}
