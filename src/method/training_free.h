/* Methods that need no training and no tensors of their own, beyond dense and Quest. Each file opens
 * with its rule, its state and what a second turn does. */
#ifndef KR_METHOD_TRAINING_FREE_H
#define KR_METHOD_TRAINING_FREE_H

#include "method/method.h"

extern const kr_method kr_method_streamingllm;
extern const kr_method kr_method_snapkv;
extern const kr_method kr_method_h2o;
extern const kr_method kr_method_sparq;
extern const kr_method kr_method_starc;
extern const kr_method kr_method_retroinfer;
extern const kr_method kr_method_magicpig;
extern const kr_method kr_method_lserve;

#endif
