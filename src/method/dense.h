/* Attention to everything a layer's window lets a token see. */
#ifndef KR_METHOD_DENSE_H
#define KR_METHOD_DENSE_H

#include "method/method.h"

extern const kr_method kr_method_dense;

#endif
