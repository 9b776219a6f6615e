/* Writes small GGUF files, well-formed or not, for the tests of the reader. */
#ifndef KR_TESTS_FILES_GGUF_BUILDER_H
#define KR_TESTS_FILES_GGUF_BUILDER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/gguf.h"
#include "tests/files/temporary.h"

enum { BUILDER_BYTES = 1 << 20 };

typedef struct {
    uint8_t head[64], keys[BUILDER_BYTES / 4], tensors[BUILDER_BYTES / 4], data[BUILDER_BYTES / 2];
    size_t key_bytes, tensor_bytes, data_bytes;
    uint32_t version;
    uint64_t key_count, tensor_count; /* what the header says */
    uint64_t alignment;               /* of the data section as written */
} builder;

static inline void put_raw(uint8_t *to, size_t *at, const void *from, size_t bytes)
{
    memcpy(to + *at, from, bytes);
    *at += bytes;
}

static inline void put_u32(uint8_t *to, size_t *at, uint32_t x) { put_raw(to, at, &x, sizeof x); }
static inline void put_u64(uint8_t *to, size_t *at, uint64_t x) { put_raw(to, at, &x, sizeof x); }

static inline void put_text(uint8_t *to, size_t *at, const char *text)
{
    put_u64(to, at, strlen(text));
    put_raw(to, at, text, strlen(text));
}

static inline builder *builder_new(void)
{
    builder *b = calloc(1, sizeof *b);

    b->version = 3;
    b->alignment = 32;
    return b;
}

/* A key whose value the caller puts after it with put_* on b->keys, &b->key_bytes. */
static inline void builder_key(builder *b, const char *key, uint32_t type)
{
    put_text(b->keys, &b->key_bytes, key);
    put_u32(b->keys, &b->key_bytes, type);
    b->key_count++;
}

static inline void builder_u32(builder *b, const char *key, uint32_t value)
{
    builder_key(b, key, KR_GGUF_U32);
    put_u32(b->keys, &b->key_bytes, value);
}

static inline void builder_f32(builder *b, const char *key, float value)
{
    builder_key(b, key, KR_GGUF_F32);
    put_raw(b->keys, &b->key_bytes, &value, sizeof value);
}

static inline void builder_bool(builder *b, const char *key, uint8_t value)
{
    builder_key(b, key, KR_GGUF_BOOL);
    put_raw(b->keys, &b->key_bytes, &value, 1);
}

static inline void builder_text(builder *b, const char *key, const char *value)
{
    builder_key(b, key, KR_GGUF_STRING);
    put_text(b->keys, &b->key_bytes, value);
}

static inline void builder_array(builder *b, const char *key, uint32_t item, uint64_t count)
{
    builder_key(b, key, KR_GGUF_ARRAY);
    put_u32(b->keys, &b->key_bytes, item);
    put_u64(b->keys, &b->key_bytes, count);
}

/* A tensor's entry as given; dims innermost first, as the file has them. */
static inline void builder_entry(builder *b, const char *name, uint32_t dims, const uint64_t *extent,
                                 uint32_t type, uint64_t offset)
{
    put_text(b->tensors, &b->tensor_bytes, name);
    put_u32(b->tensors, &b->tensor_bytes, dims);
    for (uint32_t d = 0; d < dims; d++)
        put_u64(b->tensors, &b->tensor_bytes, extent[d]);
    put_u32(b->tensors, &b->tensor_bytes, type);
    put_u64(b->tensors, &b->tensor_bytes, offset);
    b->tensor_count++;
}

/* An F32 tensor [rows][columns] (rows 0: a vector) with data after the ones before it. */
static inline void builder_f32_tensor(builder *b, const char *name, uint64_t rows, uint64_t columns)
{
    const uint64_t extent[2] = {columns, rows};
    const size_t bytes = (rows ? rows : 1) * columns * sizeof(float);

    builder_entry(b, name, rows ? 2 : 1, extent, 0, b->data_bytes);
    b->data_bytes += (bytes + 31) / 32 * 32;
}

/* The file's bytes into a new buffer. */
static inline uint8_t *builder_bytes(const builder *b, size_t *bytes)
{
    uint8_t *out = calloc(1, 2 * BUILDER_BYTES);
    size_t at = 0;

    put_raw(out, &at, "GGUF", 4);
    put_u32(out, &at, b->version);
    put_u64(out, &at, b->tensor_count);
    put_u64(out, &at, b->key_count);
    put_raw(out, &at, b->keys, b->key_bytes);
    put_raw(out, &at, b->tensors, b->tensor_bytes);
    if (b->data_bytes > 0) {
        at = (at + b->alignment - 1) / b->alignment * b->alignment;
        put_raw(out, &at, b->data, b->data_bytes);
    }
    *bytes = at;
    return out;
}

static inline void builder_write(builder *b, const char *path)
{
    size_t bytes;
    uint8_t *data = builder_bytes(b, &bytes);

    write_file(path, data, bytes);
    free(data);
}

/* Metadata of a Llama of one layer: hidden 64, 2 heads of 32, FFN 64. */
static inline void builder_llama_keys(builder *b)
{
    builder_text(b, "general.architecture", "llama");
    builder_u32(b, "llama.block_count", 1);
    builder_u32(b, "llama.context_length", 128);
    builder_u32(b, "llama.embedding_length", 64);
    builder_u32(b, "llama.feed_forward_length", 64);
    builder_u32(b, "llama.attention.head_count", 2);
    builder_f32(b, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

/* A byte-level vocabulary of count made-up tokens. */
static inline void builder_vocab(builder *b, uint64_t count)
{
    char piece[16];

    builder_text(b, "tokenizer.ggml.model", "gpt2");
    builder_text(b, "tokenizer.ggml.pre", "gpt-2");
    builder_array(b, "tokenizer.ggml.tokens", KR_GGUF_STRING, count);
    for (uint64_t i = 0; i < count; i++) {
        snprintf(piece, sizeof piece, "t%llu", (unsigned long long)i);
        put_text(b->keys, &b->key_bytes, piece);
    }
    builder_array(b, "tokenizer.ggml.merges", KR_GGUF_STRING, 0);
}

static inline void builder_llama_tensors(builder *b, uint64_t vocab)
{
    builder_f32_tensor(b, "token_embd.weight", vocab, 64);
    builder_f32_tensor(b, "output_norm.weight", 0, 64);
    builder_f32_tensor(b, "blk.0.attn_norm.weight", 0, 64);
    builder_f32_tensor(b, "blk.0.attn_q.weight", 64, 64);
    builder_f32_tensor(b, "blk.0.attn_k.weight", 64, 64);
    builder_f32_tensor(b, "blk.0.attn_v.weight", 64, 64);
    builder_f32_tensor(b, "blk.0.attn_output.weight", 64, 64);
    builder_f32_tensor(b, "blk.0.ffn_norm.weight", 0, 64);
    builder_f32_tensor(b, "blk.0.ffn_gate.weight", 64, 64);
    builder_f32_tensor(b, "blk.0.ffn_up.weight", 64, 64);
    builder_f32_tensor(b, "blk.0.ffn_down.weight", 64, 64);
}

#endif
