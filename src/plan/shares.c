/* Reading shares of experts: values are counted against the model's experts as they come in. */
#include "plan/shares.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "base/rng.h"

enum { BYTES_MAX = 64 << 20 };

/* The rows read so far. */
typedef struct {
    const char *path;
    const kr_model *model;
    double *value; /* [layers][experts] */
    uint32_t rows, column;
} reader;

static kr_status take(reader *r, double value, kr_err *err)
{
    const uint32_t experts = r->model->moe.experts;

    if (r->rows == r->model->layers)
        return kr_fail(err, KR_E_FORMAT, "%s: more rows than the %u layers of %s", r->path, r->model->layers,
                       r->model->name);
    if (r->column == experts)
        return kr_fail(err, KR_E_FORMAT, "%s: row %u has more than the %u experts of %s", r->path,
                       r->rows + 1, experts, r->model->name);
    if (!(value >= 0.0 && value <= 1e15))
        return kr_fail(err, KR_E_FORMAT, "%s: row %u, number %u is not 0 to 1e15", r->path, r->rows + 1,
                       r->column + 1);
    r->value[(size_t)r->rows * experts + r->column++] = value;
    return KR_OK;
}

static kr_status end_row(reader *r, kr_err *err)
{
    const uint32_t experts = r->model->moe.experts;
    double *row = r->value + (size_t)r->rows * experts, sum = 0.0;

    if (r->column != experts)
        return kr_fail(err, KR_E_FORMAT, "%s: row %u has %u numbers, %s has %u experts", r->path, r->rows + 1,
                       r->column, r->model->name, experts);
    for (uint32_t i = 0; i < experts; i++)
        sum += row[i];
    if (sum <= 0.0)
        return kr_fail(err, KR_E_FORMAT, "%s: row %u is all 0", r->path, r->rows + 1);
    for (uint32_t i = 0; i < experts; i++)
        row[i] /= sum;
    r->rows++;
    r->column = 0;
    return KR_OK;
}

static kr_status read_lines(reader *r, char *text, kr_err *err)
{
    for (char *line = text; *line != '\0';) {
        const size_t length = strcspn(line, "\n");
        char *next = line + length + (line[length] == '\n');
        kr_status status = KR_OK;

        line[length] = '\0';
        while (status == KR_OK && line[strspn(line, " \t\r")] != '\0') {
            char *end;
            const double value = strtod(line, &end);

            end += strspn(end, " \t\r");
            if (end == line || (*end != ',' && *end != '\0'))
                return kr_fail(err, KR_E_FORMAT, "%s: row %u, number %u is not a number", r->path,
                               r->rows + 1, r->column + 1);
            status = take(r, value, err);
            line = end + (*end == ',');
        }
        if (status == KR_OK && r->column > 0)
            status = end_row(r, err);
        if (status != KR_OK)
            return status;
        line = next;
    }
    return KR_OK;
}

static kr_status read_list(reader *r, const json_t *list, kr_err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const kr_status status = take(r, json_is_number(item) ? json_number_value(item) : NAN, err);

        if (status != KR_OK)
            return status;
    }
    return end_row(r, err);
}

static kr_status read_json(reader *r, kr_err *err)
{
    json_t *root = NULL;
    kr_status status = kr_json_load(r->path, &root, err);

    if (status != KR_OK)
        return status;
    if (json_is_array(json_array_get(root, 0)))
        for (size_t i = 0; i < json_array_size(root) && status == KR_OK; i++)
            status = read_list(r, json_array_get(root, i), err);
    else
        status = read_list(r, root, err);
    json_decref(root);
    return status;
}

/* The whole file with a zero byte at its end; the caller frees it. */
static kr_status read_text(const char *path, char **text, kr_err *err)
{
    FILE *in = fopen(path, "rb");
    char *bytes = kr_alloc(BYTES_MAX + 1);
    size_t read = 0;
    kr_status status = KR_OK;

    if (in == NULL)
        status = kr_fail(err, KR_E_NOT_FOUND, "%s: %s", path, strerror(errno));
    else if (bytes == NULL)
        status = kr_fail(err, KR_E_MEMORY, "%s: no memory for %d bytes", path, BYTES_MAX);
    else if ((read = fread(bytes, 1, BYTES_MAX + 1, in)) > BYTES_MAX)
        status = kr_fail(err, KR_E_LIMIT, "%s: more than %d bytes", path, BYTES_MAX);
    else if (ferror(in))
        status = kr_fail(err, KR_E_IO, "%s: cannot be read", path);
    else
        bytes[read] = '\0';
    if (in != NULL)
        fclose(in);
    if (status == KR_OK)
        *text = bytes;
    else
        kr_free(bytes);
    return status;
}

/* Spreads rows of the layers with experts over all layers, from the last on: none moves backwards. */
static void place_rows(reader *r)
{
    const kr_model *m = r->model;
    uint32_t row = r->rows;

    if (r->rows == m->layers)
        return;
    for (uint32_t l = m->layers; l-- > 0 && row > 0;)
        if (m->layer[l].ffn == KR_FFN_MOE)
            memmove(r->value + (size_t)l * m->moe.experts, r->value + (size_t)--row * m->moe.experts,
                    m->moe.experts * sizeof *r->value);
}

static kr_status check_rows(const reader *r, kr_err *err)
{
    uint32_t with = 0;

    for (uint32_t l = 0; l < r->model->layers; l++)
        with += r->model->layer[l].ffn == KR_FFN_MOE;
    if (r->rows != 1 && r->rows != r->model->layers && r->rows != with)
        return kr_fail(err, KR_E_FORMAT, "%s: %u rows; one for all layers, %u, or %u of those with experts",
                       r->path, r->rows, r->model->layers, with);
    return KR_OK;
}

kr_status kr_expert_shares_load(const char *path, const kr_model *model, kr_expert_shares *shares,
                                kr_err *err)
{
    reader r = {.path = path, .model = model};
    char *text = NULL;
    kr_status status;

    if (model->moe.experts == 0)
        return kr_fail(err, KR_E_ARG, "%s: %s has no experts", path, model->name);
    status = read_text(path, &text, err);
    if (status != KR_OK)
        return status;
    r.value = kr_alloc((size_t)model->layers * model->moe.experts * sizeof *r.value);
    if (r.value == NULL)
        status = kr_fail(err, KR_E_MEMORY, "%s: no memory for %u layers", path, model->layers);
    else if (text[strspn(text, " \t\r\n")] == '[')
        status = read_json(&r, err);
    else
        status = read_lines(&r, text, err);
    kr_free(text);
    if (status == KR_OK)
        status = check_rows(&r, err);
    if (status != KR_OK) {
        kr_free(r.value);
        return status;
    }
    if (r.rows > 1)
        place_rows(&r);
    *shares = (kr_expert_shares){.share = r.value, .by_layer = r.rows > 1};
    return KR_OK;
}

void kr_expert_shares_free(kr_expert_shares *shares)
{
    kr_free(shares->share);
    *shares = (kr_expert_shares){0};
}

void kr_expert_shares_power_law(double *share, uint32_t experts, double skew)
{
    kr_rng rng = kr_rng_make(1, experts);
    double sum = 0.0;

    for (uint32_t i = 0; i < experts; i++)
        sum += share[i] = pow(i + 1.0, -skew);
    for (uint32_t i = 0; i < experts; i++)
        share[i] /= sum;
    for (uint32_t i = experts; i > 1; i--) {
        const uint32_t j = (uint32_t)kr_rng_below(&rng, i);
        const double held = share[i - 1];

        share[i - 1] = share[j];
        share[j] = held;
    }
}
