/* XXH3 behind karat's two hash functions. Compiled in from xxHash's header, so the running state
 * lives on the stack and digests do not depend on the installed library. */
#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t kr_hash64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

kr_hash128 kr_hash128_link(kr_hash128 previous, const void *data, size_t bytes)
{
    XXH3_state_t state;

    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, &previous, sizeof previous);
    XXH3_128bits_update(&state, data, bytes);
    const XXH128_hash_t digest = XXH3_128bits_digest(&state);
    return (kr_hash128){.low = digest.low64, .high = digest.high64};
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digests and files are little-endian");
