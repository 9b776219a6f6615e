/* channel_dot in F32, 8 lanes a vector. */
#include "ops/x86/lanes_avx2.h"

#define KR_CHANNEL_DOT_NAME kr_channel_dot_avx2
#include "ops/channel_dot_lanes.h"
