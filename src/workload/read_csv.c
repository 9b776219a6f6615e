/* Tables of requests: Azure (TIMESTAMP, ContextTokens, GeneratedTokens) and BurstGPT (Timestamp, Model,
 * Request tokens, Response tokens, ...). Columns are found by name; others are read over.
 *
 * Rules: rows in order of time; each row is a session of its own (BurstGPT's Session ID too: its turns
 * overlap and state no context that one could carry over). BurstGPT's rows without response tokens
 * failed: they are left out and counted. A line has at most 64 KB; quoted fields are not used by either
 * maker and are refused where they stand in a column that is needed. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/arena.h"
#include "workload/read.h"

enum { LINE_BYTES = 1 << 16, COLUMNS_MAX = 256 };

/* Days since 1970-01-01 of a date in the Gregorian calendar. */
static int64_t days_from(int64_t year, int64_t month, int64_t day)
{
    const int64_t y = year - (month <= 2), era = y / 400, of_era = y - era * 400;
    const int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

bool kr_read_timestamp(const char *text, uint64_t *us)
{
    int year, month, day, hour, minute, used = 0, zone_hour = 0, zone_minute = 0;
    double second;
    char separator, *end;
    int64_t seconds;

    if (sscanf(text, "%4d-%2d-%2d%c%2d:%2d:%lf%n", &year, &month, &day, &separator, &hour, &minute, &second,
               &used) != 7) {
        second = strtod(text, &end);
        if (end == text || *end != '\0' || !(second >= 0.0) || second > 9e9)
            return false;
        *us = (uint64_t)(second * 1e6 + 0.5);
        return true;
    }
    if ((separator != ' ' && separator != 'T') || year < 1970 || month < 1 || month > 12 || day < 1 ||
        day > 31 || hour < 0 || hour > 23 || minute < 0 || minute > 59 || !(second >= 0.0 && second < 61.0))
        return false;
    text += used;
    if ((*text == '+' || *text == '-') && sscanf(text + 1, "%2d:%2d", &zone_hour, &zone_minute) == 2)
        zone_hour = *text == '-' ? -zone_hour : zone_hour,
        zone_minute = *text == '-' ? -zone_minute : zone_minute;
    else if (*text != '\0' && strcmp(text, "Z") != 0)
        return false;
    seconds = days_from(year, month, day) * 86400 + (hour - zone_hour) * 3600 + (minute - zone_minute) * 60;
    if (seconds < 0)
        return false;
    *us = (uint64_t)seconds * 1000000 + (uint64_t)(second * 1e6 + 0.5);
    return true;
}

typedef struct {
    const char *path;
    FILE *in;
    kr_trace *trace;
    uint64_t line;
    char *text;               /* [LINE_BYTES] */
    char *field[COLUMNS_MAX]; /* into text */
    int fields;
    int time, input, output; /* columns */
    bool burst;
} table;

/* KR_IN_PROGRESS at the end of the file. */
static kr_status next_line(table *t, kr_err *err)
{
    size_t length;
    char *p;

    if (fgets(t->text, LINE_BYTES, t->in) == NULL)
        return ferror(t->in) ? kr_fail(err, KR_E_IO, "%s: cannot be read", t->path) : KR_IN_PROGRESS;
    t->line++;
    length = strlen(t->text);
    if (length == LINE_BYTES - 1 && t->text[length - 1] != '\n')
        return kr_fail(err, KR_E_LIMIT, "%s:%llu: a line longer than %d bytes", t->path,
                       (unsigned long long)t->line, LINE_BYTES - 2);
    while (length > 0 && (t->text[length - 1] == '\n' || t->text[length - 1] == '\r'))
        t->text[--length] = '\0';
    t->fields = 0;
    for (p = t->text; p != NULL && t->fields < COLUMNS_MAX;) {
        t->field[t->fields++] = p;
        p = strchr(p, ',');
        if (p != NULL)
            *p++ = '\0';
    }
    return KR_OK;
}

static int column(const table *t, const char *name)
{
    for (int i = 0; i < t->fields; i++)
        if (strcasecmp(t->field[i], name) == 0)
            return i;
    return -1;
}

static kr_status header(table *t, kr_err *err)
{
    kr_status status = next_line(t, err);

    if (status == KR_IN_PROGRESS)
        return kr_fail(err, KR_E_FORMAT, "%s: empty", t->path);
    if (status != KR_OK)
        return status;
    t->time = column(t, "timestamp");
    t->input = column(t, "ContextTokens");
    t->output = column(t, "GeneratedTokens");
    t->burst = t->input < 0;
    if (t->burst) {
        t->input = column(t, "Request tokens");
        t->output = column(t, "Response tokens");
    }
    if (t->time < 0 || t->input < 0 || t->output < 0)
        return kr_fail(err, KR_E_FORMAT,
                       "%s:1: needs columns TIMESTAMP, ContextTokens, GeneratedTokens (Azure) or Timestamp, "
                       "Request tokens, Response tokens (BurstGPT)",
                       t->path);
    return KR_OK;
}

static kr_status tokens(const table *t, int at, uint64_t *out, kr_err *err)
{
    char *end = NULL;

    errno = 0;
    if (at < t->fields && t->field[at][0] >= '0' && t->field[at][0] <= '9')
        *out = strtoull(t->field[at], &end, 10);
    if (end == NULL || *end != '\0' || errno != 0 || *out > KR_TRACE_TOKENS_MAX)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: column %d must be a number of tokens, 0 to %d", t->path,
                       (unsigned long long)t->line, at + 1, KR_TRACE_TOKENS_MAX);
    return KR_OK;
}

static kr_status one_row(table *t, kr_trace_builder *b, uint64_t *first_us, uint64_t *last_us, kr_err *err)
{
    kr_trace_turn turn = {.think_us = KR_TRACE_NONE, .api_us = KR_TRACE_NONE};
    char id[KR_TRACE_ID_BYTES];
    uint64_t us = 0;
    kr_status status = tokens(t, t->input, &turn.input_tokens, err);

    if (status == KR_OK)
        status = tokens(t, t->output, &turn.output_tokens, err);
    if (status != KR_OK)
        return status;
    if (t->time >= t->fields || !kr_read_timestamp(t->field[t->time], &us))
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: column %d must be a time", t->path,
                       (unsigned long long)t->line, t->time + 1);
    if (*first_us == KR_TRACE_NONE)
        *first_us = us;
    if (us < *last_us)
        return kr_fail(err, KR_E_FORMAT, "%s:%llu: a row comes before the one above it; sort by time",
                       t->path, (unsigned long long)t->line);
    *last_us = us;
    if (t->burst && turn.output_tokens == 0) {
        t->trace->failed_requests++;
        return KR_OK;
    }
    snprintf(id, sizeof id, "request %u", t->trace->sessions + 1);
    status = kr_trace_begin(b, id, t->line, err);
    b->session.start_us = us - *first_us;
    if (status == KR_OK)
        status = kr_trace_add_turn(b, &turn, false, 0, t->line, err);
    return status == KR_OK ? kr_trace_end(b, t->line, err) : status;
}

static kr_status rows(table *t, kr_err *err)
{
    uint64_t first_us = KR_TRACE_NONE, last_us = 0;
    kr_trace_builder b;
    kr_status status = header(t, err);

    kr_trace_builder_init(&b, t->trace, t->path);
    t->trace->format = t->burst ? KR_TRACE_BURSTGPT : KR_TRACE_AZURE;
    while (status == KR_OK) {
        status = next_line(t, err);
        if (status == KR_OK && t->text[0] != '\0')
            status = one_row(t, &b, &first_us, &last_us, err);
    }
    kr_trace_builder_free(&b);
    return status == KR_IN_PROGRESS ? KR_OK : status;
}

kr_status kr_read_csv(const char *path, kr_trace *trace, kr_err *err)
{
    table t = {.path = path, .trace = trace, .text = kr_alloc(LINE_BYTES)};
    kr_status status;

    if (t.text == NULL)
        return kr_fail(err, KR_E_MEMORY, "%s: no memory for a line", path);
    t.in = fopen(path, "rb");
    if (t.in == NULL) {
        status = kr_fail(err, KR_E_NOT_FOUND, "%s: %s", path, strerror(errno));
    } else {
        status = rows(&t, err);
        fclose(t.in);
    }
    kr_free(t.text);
    return status;
}
