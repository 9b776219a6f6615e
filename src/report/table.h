/* A table of results: typed cells under columns with units; printed as aligned text, as JSON, and
 * by page.h as HTML.
 *
 * A table copies what it is given. Running out of memory is remembered and comes back from the
 * function that writes the table, so that adding needs no checks. Not thread-safe. */
#ifndef KR_REPORT_TABLE_H
#define KR_REPORT_TABLE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/json.h"
#include "base/status.h"

typedef struct {
    const char *title; /* "read bandwidth" */
    const char *unit;  /* "GB/s"; NULL when it has none */
    const char *key;   /* name in JSON, unit last: "read_gb_per_s"; NULL leaves the column out */
    uint8_t decimals;  /* of real cells in text; JSON keeps all digits */
} kr_column;

typedef enum { KR_CELL_NONE, KR_CELL_TEXT, KR_CELL_COUNT, KR_CELL_REAL } kr_cell_kind;

typedef struct {
    kr_cell_kind kind;
    union {
        char *text;
        uint64_t count;
        double real; /* not finite: printed "-", null in JSON */
    };
} kr_cell;

typedef struct {
    const char *title;        /* may be NULL; lives as long as the table */
    const kr_column *columns; /* [column_count]; lives as long as the table */
    uint32_t column_count;
    kr_cell *cells; /* [capacity], row-major; the first count are set */
    uint64_t count, capacity;
    bool failed; /* an addition found no memory */
} kr_table;

void kr_table_init(kr_table *table, const char *title, const kr_column *columns, uint32_t column_count);
void kr_table_free(kr_table *table);

/* Add the next cell, row by row from the left. */
void kr_table_text(kr_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void kr_table_count(kr_table *table, uint64_t value);
void kr_table_real(kr_table *table, double value);
void kr_table_none(kr_table *table);

static inline uint64_t kr_table_rows(const kr_table *table) { return table->count / table->column_count; }
/* row < kr_table_rows. */
static inline const kr_cell *kr_table_cell(const kr_table *table, uint64_t row, uint32_t column)
{
    return &table->cells[row * table->column_count + column];
}

/* The cell as text in out, cut at bytes. */
void kr_table_cell_text(const kr_table *table, uint64_t row, uint32_t column, char *out, size_t bytes);

/* Aligned text: numbers to the right, words to the left. KR_E_MEMORY, KR_E_IO. */
kr_status kr_table_print(const kr_table *table, FILE *out, kr_err *err);
/* An array with one object a row; the caller owns it. KR_E_MEMORY. */
kr_status kr_table_json(const kr_table *table, json_t **rows, kr_err *err);

#endif
