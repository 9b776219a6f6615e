/* The HTML around tables and charts. */
#include "report/page.h"

#include <stdarg.h>
#include <string.h>

#include "base/check.h"
#include "report/svg.h"

enum { PARAGRAPH_BYTES = 4096, CELL_BYTES = 256 };

static const char style[] =
    "body{font:15px/1.5 system-ui,'Liberation "
    "Sans',Helvetica,Arial,sans-serif;color:#1f2933;background:#f5f7fa;"
    "margin:0}\n"
    "main{max-width:900px;margin:0 auto;padding:24px 28px 60px;background:#fff;min-height:100vh}\n"
    "h1{font-size:26px;margin:8px 0 2px}\n"
    "h2{font-size:19px;margin:34px 0 8px;border-bottom:1px solid #e4e7eb;padding-bottom:4px}\n"
    ".sub{color:#52606d;margin:0 0 18px}\n"
    "svg{max-width:100%;height:auto;margin:10px 0}\n"
    "pre{background:#f5f7fa;padding:10px 12px;white-space:pre-wrap;font-size:13px;border-radius:4px}\n"
    /* A table may be wider than the text, to the window's edges. */
    ".wide{overflow-x:auto;margin:12px 0;width:max-content;min-width:100%;max-width:96vw;position:relative;"
    "left:50%;transform:translateX(-50%);background:#fff}\n"
    "table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}\n"
    "caption{text-align:left;font-weight:600;padding:4px 0}\n"
    "th,td{padding:4px 10px;border-bottom:1px solid #e4e7eb;text-align:left;white-space:nowrap}\n"
    "td:last-child{white-space:normal;min-width:5em;max-width:24em}\n"
    "th{color:#52606d;font-weight:600;border-bottom:2px solid #cbd2d9;vertical-align:bottom}\n"
    "th small{font-weight:400;display:block}\n"
    ".n{text-align:right}\n"
    "tbody tr:hover{background:#f5f7fa}\n"
    "@media print{body,main{background:#fff}}\n";

void kr_page_begin(FILE *out, const char *title, const char *subtitle)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width\">\n<title>",
          out);
    kr_svg_escape(title, out);
    fprintf(out, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n<h1>", style);
    kr_svg_escape(title, out);
    fputs("</h1>\n", out);
    if (subtitle != NULL) {
        fputs("<p class=\"sub\">", out);
        kr_svg_escape(subtitle, out);
        fputs("</p>\n", out);
    }
}

void kr_page_heading(FILE *out, const char *text)
{
    fputs("<h2>", out);
    kr_svg_escape(text, out);
    fputs("</h2>\n", out);
}

void kr_page_text(FILE *out, const char *format, ...)
{
    char text[PARAGRAPH_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fputs("<p>", out);
    kr_svg_escape(text, out);
    fputs("</p>\n", out);
}

void kr_page_code(FILE *out, const char *text)
{
    fputs("<pre>", out);
    while (*text != '\0') { /* line by line: the escape would blank the line ends */
        char line[PARAGRAPH_BYTES];
        const size_t length = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", length < sizeof line ? (int)length : (int)sizeof line - 1, text);
        kr_svg_escape(line, out);
        text += length;
        if (*text == '\n') {
            fputc('\n', out);
            text++;
        }
    }
    fputs("</pre>\n", out);
}

static bool is_words(const kr_table *table, uint32_t column)
{
    for (uint64_t r = 0; r < kr_table_rows(table); r++)
        if (kr_table_cell(table, r, column)->kind == KR_CELL_TEXT)
            return true;
    return false;
}

kr_status kr_page_table(FILE *out, const kr_table *table, kr_err *err)
{
    char text[CELL_BYTES];

    if (table->failed)
        return kr_fail(err, KR_E_MEMORY, "no memory for a table of %u columns", table->column_count);
    KR_CHECK(table->count % table->column_count == 0);
    fputs("<div class=\"wide\"><table>\n", out);
    if (table->title != NULL) {
        fputs("<caption>", out);
        kr_svg_escape(table->title, out);
        fputs("</caption>\n", out);
    }
    fputs("<thead><tr>", out);
    for (uint32_t c = 0; c < table->column_count; c++) {
        fputs(is_words(table, c) ? "<th>" : "<th class=\"n\">", out);
        kr_svg_escape(table->columns[c].title, out);
        if (table->columns[c].unit != NULL) {
            fputs("<small>", out);
            kr_svg_escape(table->columns[c].unit, out);
            fputs("</small>", out);
        }
        fputs("</th>", out);
    }
    fputs("</tr></thead>\n<tbody>\n", out);
    for (uint64_t r = 0; r < kr_table_rows(table); r++) {
        fputs("<tr>", out);
        for (uint32_t c = 0; c < table->column_count; c++) {
            kr_table_cell_text(table, r, c, text, sizeof text);
            fputs(kr_table_cell(table, r, c)->kind == KR_CELL_TEXT ? "<td>" : "<td class=\"n\">", out);
            kr_svg_escape(text, out);
            fputs("</td>", out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
    return ferror(out) ? kr_fail(err, KR_E_IO, "cannot write a table") : KR_OK;
}

kr_status kr_page_end(FILE *out, kr_err *err)
{
    fputs("</main>\n</body>\n</html>\n", out);
    return fflush(out) != 0 || ferror(out) ? kr_fail(err, KR_E_IO, "cannot write the page") : KR_OK;
}
