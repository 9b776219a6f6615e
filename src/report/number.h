/* Numbers as people read them: short, with the suffix that fits. */
#ifndef KR_REPORT_NUMBER_H
#define KR_REPORT_NUMBER_H

#include <stddef.h>
#include <stdint.h>

enum { KR_NUMBER_BYTES = 32 }; /* enough for every function below */

/* Powers of 1,000: 1234567 -> "1.23M", 0.00123 -> "1.23m", 12 -> "12"; three digits, trailing
 * zeros dropped. Suffixes p n u m, k M G T P; beyond them, or not finite: as %g prints it. */
void kr_number_si(double value, char out[KR_NUMBER_BYTES]);
/* Powers of 1,024: 65536 -> "64K", 1.5 * 2^20 -> "1.5M". */
void kr_number_binary(double value, char out[KR_NUMBER_BYTES]);
/* Fixed decimals with thousands separated: 1234567.5, 1 -> "1,234,567.5". "-" when not finite. */
void kr_number_fixed(double value, unsigned decimals, char out[KR_NUMBER_BYTES]);

#endif
