/* One self-contained HTML page: headings, paragraphs, tables and inline SVG charts; no scripts,
 * no fonts or styles from elsewhere. Parts are written in the order of the calls.
 *
 *     kr_page_begin(out, "karat bench", "this machine, today");
 *     kr_page_heading(out, "Selection");
 *     kr_page_text(out, "Each row is measured beside its limit.");
 *     kr_page_table(out, &table, &err);
 *     kr_chart_xy(&chart, out, &err);
 *     status = kr_page_end(out, &err);
 */
#ifndef KR_REPORT_PAGE_H
#define KR_REPORT_PAGE_H

#include <stdio.h>

#include "base/status.h"
#include "report/table.h"

/* subtitle may be NULL. All text is escaped. */
void kr_page_begin(FILE *out, const char *title, const char *subtitle);
void kr_page_heading(FILE *out, const char *text);
void kr_page_text(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Preformatted text, such as the command that made the page. */
void kr_page_code(FILE *out, const char *text);
kr_status kr_page_table(FILE *out, const kr_table *table, kr_err *err);
/* KR_E_IO when anything since begin could not be written. */
kr_status kr_page_end(FILE *out, kr_err *err);

#endif
