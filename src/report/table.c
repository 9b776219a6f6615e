/* Growth, text and JSON of tables. */
#include "report/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "base/arena.h"
#include "base/check.h"
#include "report/number.h"

enum { CELL_TEXT_BYTES = 256, FIRST_CAPACITY = 64, COLUMNS_MAX = 64 };

void kr_table_init(kr_table *table, const char *title, const kr_column *columns, uint32_t column_count)
{
    KR_CHECK(column_count > 0 && column_count <= COLUMNS_MAX);
    *table = (kr_table){.title = title, .columns = columns, .column_count = column_count};
}

void kr_table_free(kr_table *table)
{
    for (uint64_t i = 0; i < table->count; i++)
        if (table->cells[i].kind == KR_CELL_TEXT)
            kr_free(table->cells[i].text);
    kr_free(table->cells);
    *table = (kr_table){0};
}

static void add(kr_table *table, kr_cell cell)
{
    if (table->count == table->capacity && !table->failed) {
        const uint64_t capacity = table->capacity != 0 ? 2 * table->capacity : FIRST_CAPACITY;
        kr_cell *cells = kr_realloc(table->cells, capacity * sizeof *cells);
        if (cells == NULL) {
            table->failed = true;
        } else {
            table->cells = cells;
            table->capacity = capacity;
        }
    }
    if (!table->failed)
        table->cells[table->count++] = cell;
    else if (cell.kind == KR_CELL_TEXT)
        kr_free(cell.text);
}

void kr_table_text(kr_table *table, const char *format, ...)
{
    char text[CELL_TEXT_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const size_t bytes = strlen(text) + 1;
    char *copy = kr_alloc(bytes);
    if (copy == NULL) {
        table->failed = true;
        return;
    }
    memcpy(copy, text, bytes);
    add(table, (kr_cell){.kind = KR_CELL_TEXT, .text = copy});
}

void kr_table_count(kr_table *table, uint64_t value)
{
    add(table, (kr_cell){.kind = KR_CELL_COUNT, .count = value});
}

void kr_table_real(kr_table *table, double value)
{
    add(table, (kr_cell){.kind = KR_CELL_REAL, .real = value});
}

void kr_table_none(kr_table *table) { add(table, (kr_cell){.kind = KR_CELL_NONE}); }

void kr_table_cell_text(const kr_table *table, uint64_t row, uint32_t column, char *out, size_t bytes)
{
    const kr_cell *cell = kr_table_cell(table, row, column);
    char number[KR_NUMBER_BYTES];

    switch (cell->kind) {
    case KR_CELL_NONE:
        snprintf(out, bytes, "%s", "");
        return;
    case KR_CELL_TEXT:
        snprintf(out, bytes, "%s", cell->text);
        return;
    case KR_CELL_COUNT:
        snprintf(out, bytes, "%" PRIu64, cell->count);
        return;
    case KR_CELL_REAL:
        kr_number_fixed(cell->real, table->columns[column].decimals, number);
        snprintf(out, bytes, "%s", number);
        return;
    }
}

static void heading(const kr_column *column, char *out, size_t bytes)
{
    if (column->unit != NULL)
        snprintf(out, bytes, "%s, %s", column->title, column->unit);
    else
        snprintf(out, bytes, "%s", column->title);
}

/* Columns a text takes on a terminal: UTF-8 continuation bytes take none. */
static int width_of(const char *text)
{
    int n = 0;

    for (; *text != '\0'; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static void print_field(const char *text, int width, bool right, bool last, FILE *out)
{
    const int pad = width - width_of(text);

    if (right)
        fprintf(out, "%*s%s", pad, "", text);
    else
        fprintf(out, "%s%*s", text, last ? 0 : pad, "");
    fputs(last ? "\n" : "  ", out);
}

/* Widths and alignment of all columns: a column with any word in it is a column of words. */
static void measure(const kr_table *table, int *width, bool *right)
{
    char text[CELL_TEXT_BYTES];

    for (uint32_t c = 0; c < table->column_count; c++) {
        heading(&table->columns[c], text, sizeof text);
        width[c] = width_of(text);
        right[c] = true;
        for (uint64_t r = 0; r < kr_table_rows(table); r++) {
            kr_table_cell_text(table, r, c, text, sizeof text);
            if (width_of(text) > width[c])
                width[c] = width_of(text);
            right[c] = right[c] && kr_table_cell(table, r, c)->kind != KR_CELL_TEXT;
        }
    }
}

/* Memory that ran out during the additions, or a last row that is not whole. */
static kr_status check_whole(const kr_table *table, kr_err *err)
{
    if (table->failed)
        return kr_fail(err, KR_E_MEMORY, "no memory for a table of %u columns", table->column_count);
    KR_CHECK(table->count % table->column_count == 0);
    return KR_OK;
}

kr_status kr_table_print(const kr_table *table, FILE *out, kr_err *err)
{
    char text[CELL_TEXT_BYTES];
    int width[COLUMNS_MAX];
    bool right[COLUMNS_MAX];
    const kr_status status = check_whole(table, err);

    if (status != KR_OK)
        return status;
    measure(table, width, right);
    if (table->title != NULL)
        fprintf(out, "%s\n\n", table->title);
    for (uint32_t c = 0; c < table->column_count; c++) {
        heading(&table->columns[c], text, sizeof text);
        print_field(text, width[c], right[c], c + 1 == table->column_count, out);
    }
    for (uint64_t r = 0; r < kr_table_rows(table); r++) {
        for (uint32_t c = 0; c < table->column_count; c++) {
            kr_table_cell_text(table, r, c, text, sizeof text);
            print_field(text, width[c], right[c], c + 1 == table->column_count, out);
        }
    }
    return ferror(out) ? kr_fail(err, KR_E_IO, "cannot write a table") : KR_OK;
}

static json_t *cell_json(const kr_cell *cell)
{
    switch (cell->kind) {
    case KR_CELL_TEXT:
        return json_string(cell->text);
    case KR_CELL_COUNT: /* JSON integers of jansson end at 2^63 - 1 */
        return cell->count <= INT64_MAX ? json_integer((json_int_t)cell->count)
                                        : json_real((double)cell->count);
    case KR_CELL_REAL:
        return isfinite(cell->real) ? json_real(cell->real) : json_null();
    case KR_CELL_NONE:
        break;
    }
    return json_null();
}

static bool row_json(const kr_table *table, uint64_t r, json_t *rows)
{
    json_t *row = json_object();
    bool good = row != NULL;

    for (uint32_t c = 0; good && c < table->column_count; c++)
        if (table->columns[c].key != NULL)
            good = json_object_set_new(row, table->columns[c].key, cell_json(kr_table_cell(table, r, c))) ==
                   0;
    if (!good) {
        json_decref(row);
        return false;
    }
    return json_array_append_new(rows, row) == 0;
}

kr_status kr_table_json(const kr_table *table, json_t **rows, kr_err *err)
{
    const kr_status status = check_whole(table, err);
    if (status != KR_OK)
        return status;

    json_t *array = json_array();
    bool good = array != NULL;
    for (uint64_t r = 0; good && r < kr_table_rows(table); r++)
        good = row_json(table, r, array);
    if (!good) {
        json_decref(array);
        return kr_fail(err, KR_E_MEMORY, "no memory for a table, or a cell is not UTF-8");
    }
    *rows = array;
    return KR_OK;
}
