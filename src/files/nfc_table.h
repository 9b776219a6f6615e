/* Unicode data for canonical composition; the tables are written by tools/make_nfc_table.py. */
#ifndef KR_FILES_NFC_TABLE_H
#define KR_FILES_NFC_TABLE_H

#include <stdint.h>

enum { KR_NFC_PAIRS = 2061, KR_NFC_COMPOSE = 941, KR_NFC_CLASSES = 382 };

/* One step of a canonical decomposition: code -> first second (second = 0: a single character). */
typedef struct {
    uint32_t code, first, second;
} kr_nfc_pair;

/* Characters first..last have this non-zero canonical combining class. */
typedef struct {
    uint32_t first, last;
    uint8_t value;
} kr_nfc_class;

extern const kr_nfc_pair kr_nfc_pairs[KR_NFC_PAIRS];  /* ascending code */
extern const uint16_t kr_nfc_compose[KR_NFC_COMPOSE]; /* indices of pairs that compose, by (first, second) */
extern const kr_nfc_class kr_nfc_classes[KR_NFC_CLASSES]; /* ascending */

#endif
