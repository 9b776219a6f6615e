/* Hashes: XXH3 for pages, frames and digests; SHA-256 lives with GnuTLS in wire and files. */
#ifndef KR_BASE_HASH_H
#define KR_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* XXH3-64 of bytes; the digest of the empty string is fixed by XXH3. */
uint64_t kr_hash64(const void *data, size_t bytes, uint64_t seed);

/* 128-bit chain value of a token prefix: link(previous, tokens of one page). Equal values mean
 * equal prefixes for the purpose of page sharing within one model, method and KV type. */
typedef struct {
    uint64_t low, high;
} kr_hash128;

kr_hash128 kr_hash128_link(kr_hash128 previous, const void *data, size_t bytes);

/* Running digest of a sequence of decisions or events; order matters. */
static inline uint64_t kr_digest_add(uint64_t digest, uint64_t value)
{
    digest ^= value + 0x9e3779b97f4a7c15u + (digest << 6) + (digest >> 2);
    digest *= 0xff51afd7ed558ccdu;
    return digest ^ (digest >> 32);
}

#endif
