/* Choice of suffix and digits. */
#include "report/number.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Three significant digits without trailing zeros. */
static void print_short(double value, const char *suffix, char out[KR_NUMBER_BYTES])
{
    const double magnitude = fabs(value);
    const int decimals = magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
    char digits[KR_NUMBER_BYTES - 4];

    snprintf(digits, sizeof digits, "%.*f", decimals, value);
    if (strchr(digits, '.') != NULL) {
        size_t length = strlen(digits);
        while (digits[length - 1] == '0')
            length--;
        if (digits[length - 1] == '.')
            length--;
        digits[length] = '\0';
    }
    snprintf(out, KR_NUMBER_BYTES, "%s%s", digits, suffix);
}

void kr_number_si(double value, char out[KR_NUMBER_BYTES])
{
    static const char *const suffixes[] = {"p", "n", "u", "m", "", "k", "M", "G", "T", "P"};
    enum { UNITS = sizeof suffixes / sizeof suffixes[0], ONE = 4 };
    const double magnitude = fabs(value);
    int unit = ONE;
    double scaled = magnitude;

    if (!(magnitude < 999.5e15) || (magnitude != 0 && magnitude < 0.9995e-12)) {
        snprintf(out, KR_NUMBER_BYTES, "%g", value);
        return;
    }
    while (scaled >= 999.5 && unit < UNITS - 1) { /* 999.6 would print as 1000 */
        scaled /= 1000;
        unit++;
    }
    while (scaled != 0 && scaled < 0.9995 && unit > 0) {
        scaled *= 1000;
        unit--;
    }
    print_short(value < 0 ? -scaled : scaled, suffixes[unit], out);
}

void kr_number_binary(double value, char out[KR_NUMBER_BYTES])
{
    static const char *const suffixes[] = {"", "K", "M", "G", "T", "P"};
    enum { UNITS = sizeof suffixes / sizeof suffixes[0] };
    double scaled = fabs(value);
    int unit = 0;

    if (!(scaled < 0x1p60)) {
        snprintf(out, KR_NUMBER_BYTES, "%g", value);
        return;
    }
    while (scaled >= 1023.5 && unit < UNITS - 1) {
        scaled /= 1024;
        unit++;
    }
    print_short(value < 0 ? -scaled : scaled, suffixes[unit], out);
}

void kr_number_fixed(double value, unsigned decimals, char out[KR_NUMBER_BYTES])
{
    char plain[KR_NUMBER_BYTES];

    if (!isfinite(value)) {
        snprintf(out, KR_NUMBER_BYTES, "-");
        return;
    }
    if (!(fabs(value) < 1e15)) {
        snprintf(out, KR_NUMBER_BYTES, "%.4g", value);
        return;
    }
    snprintf(plain, sizeof plain, "%.*f", decimals < 6 ? (int)decimals : 6, value);
    const size_t sign = plain[0] == '-', digits = strcspn(plain + sign, ".");
    size_t used = 0;
    for (size_t i = 0; plain[i] != '\0'; i++) {
        const bool whole = i > sign && i < sign + digits;
        if (whole && (sign + digits - i) % 3 == 0)
            out[used++] = ',';
        out[used++] = plain[i];
    }
    out[used] = '\0';
}
