/* Methods outside the tree: shared objects with a karat_method_table (karat/method.h), which take part as
 * methods with keys as rows, a selection of units and plain attention over it.
 *
 * Loaded ones join the table that kr_method_find searches, for good. Loading happens while a command
 * starts, before other threads: the list is not locked. */
#ifndef KR_METHOD_OUTSIDE_H
#define KR_METHOD_OUTSIDE_H

#include "method/method.h"

enum { KR_METHODS_OUTSIDE_MAX = 16 };

/* A name is a file's when it holds a '/' or ends in ".so". */
bool kr_method_is_file(const char *name);
/* Loads a file's method; the same file again gives the same method. KR_E_NOT_FOUND (no file, no symbol),
 * KR_E_VERSION (another KARAT_METHOD_ABI), KR_E_FORMAT (a table that lacks something), KR_E_EXISTS (a
 * method of that name is there), KR_E_LIMIT. */
kr_status kr_method_load(const char *path, const kr_method **method, kr_err *err);
/* kr_method_load for a file's name, kr_method_find for any other: what a command line says. */
kr_status kr_method_open(const char *name, const kr_method **method, kr_err *err);
/* The index'th that was loaded; NULL past the last. */
const kr_method *kr_method_outside(uint32_t index);

#endif
