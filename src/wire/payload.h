/* Reading the payloads of messages from untrusted bytes.
 *
 * Each reader checks the whole payload (length, ranges, enums, reserved fields zero, text ended)
 * and copies it out; outputs are written only when all of it is right. A payload with bytes left
 * over is malformed. KR_E_FORMAT or KR_E_LIMIT, naming the field. Writing needs no functions: the
 * structs of msg.h are their wire form, except the error text below. */
#ifndef KR_WIRE_PAYLOAD_H
#define KR_WIRE_PAYLOAD_H

#include "wire/msg.h"

enum {
    KR_MSG_DEVICES_MAX = 64,
    KR_MSG_PREFIX_PAGES_MAX = 1 << 17, /* 16 M tokens */
    KR_MSG_ERROR_BYTES_MAX = 8 + KR_ERR_TEXT_BYTES,
};

/* rows[count] at the start of an INDEX or ATTEND payload into rows (room for count). *used =
 * bytes of the part. Handles name a slot, tokens are >= 1 in a row and <= tokens_max in all, position
 * + tokens does not wrap. */
kr_status kr_msg_rows_read(const uint8_t *payload, uint64_t bytes, uint32_t count, uint64_t tokens_max,
                           kr_msg_row *rows, uint64_t *used, kr_err *err);

/* The selection part: counts[lists], then the indices of all lists, each list strictly ascending
 * and below index_end. indices has room for capacity in all. *used = bytes of the part. */
kr_status kr_msg_lists_read(const uint8_t *part, uint64_t bytes, uint32_t lists, uint32_t index_end,
                            uint32_t *counts, uint32_t *indices, uint64_t capacity, uint64_t *used,
                            kr_err *err);

kr_status kr_msg_hello_read(const uint8_t *payload, uint64_t bytes, kr_msg_hello *out, kr_err *err);
kr_status kr_msg_proof_read(const uint8_t *payload, uint64_t bytes, kr_msg_proof *out, kr_err *err);
kr_status kr_msg_welcome_read(const uint8_t *payload, uint64_t bytes, kr_msg_welcome *out, kr_err *err);
/* *address points into payload. */
kr_status kr_msg_path_read(const uint8_t *payload, uint64_t bytes, kr_msg_path *out, const uint8_t **address,
                           kr_err *err);
/* layers has room for KR_MSG_LAYERS_MAX. */
kr_status kr_msg_configure_read(const uint8_t *payload, uint64_t bytes, kr_msg_configure *out,
                                kr_msg_layer *layers, kr_err *err);
/* *prefix points at the out->prefix_pages hashes in payload; read them with kr_msg_prefix_at. */
kr_status kr_msg_open_read(const uint8_t *payload, uint64_t bytes, kr_msg_open *out, const uint8_t **prefix,
                           kr_err *err);
kr_status kr_msg_session_read(const uint8_t *payload, uint64_t bytes, kr_msg_session *out,
                              const uint8_t **prefix, kr_err *err);
kr_hash128 kr_msg_prefix_at(const uint8_t *prefix, uint32_t page);
/* *blob points at the client_bytes in payload. */
kr_status kr_msg_opened_read(const uint8_t *payload, uint64_t bytes, kr_msg_opened *out, const uint8_t **blob,
                             kr_err *err);
/* A plain file name: [A-Za-z0-9._-]+, no leading dot, shorter than KR_NAME_BYTES. KR_E_FORMAT. */
kr_status kr_msg_name_check(const char *name, kr_err *err);
/* The name is one of these, ended by NUL. */
kr_status kr_msg_file_read(const uint8_t *payload, uint64_t bytes, kr_msg_file *out, const uint8_t **blob,
                           kr_err *err);
/* devices has room for KR_MSG_DEVICES_MAX. */
kr_status kr_msg_stats_read(const uint8_t *payload, uint64_t bytes, kr_msg_stats *out,
                            kr_msg_device_stats *devices, kr_err *err);

/* Writes the ERROR payload for a failure into bytes (room for KR_MSG_ERROR_BYTES_MAX) and returns
 * its length. */
uint32_t kr_msg_error_write(const kr_err *failure, uint8_t *bytes);
/* Reads an ERROR payload and returns the peer's failure as this side's: err gets the peer's status
 * and its text. A malformed one, or one that reports success, is KR_E_FORMAT. */
kr_status kr_msg_error_read(const uint8_t *payload, uint64_t bytes, kr_err *err);

#endif
