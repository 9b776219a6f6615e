/* channel_dot in F32, 4 tokens a vector. */
#include "ops/arm/lanes_neon.h"

#define KR_CHANNEL_DOT_NAME kr_channel_dot_neon
#include "ops/channel_dot_lanes.h"
