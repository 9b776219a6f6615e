/* channel_dot in F32, 16 lanes a vector. */
#include "ops/x86/lanes_avx512.h"

#define KR_CHANNEL_DOT_NAME kr_channel_dot_avx512
#include "ops/channel_dot_lanes.h"
