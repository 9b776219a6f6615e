/* Routing of experts: what share of the work each gets, from a file or by a power law. */
#ifndef KR_PLAN_SHARES_H
#define KR_PLAN_SHARES_H

#include "base/status.h"
#include "model/model.h"

typedef struct {
    double *share; /* [rows][experts], each row summing to 1; owned */
    bool by_layer; /* rows are the model's layers; else one row is of all of them */
} kr_expert_shares;

/* Reads counts or shares of the model's experts: numbers from 0 on, at least one above 0 in a row, scaled
 * to a sum of 1. A row for all layers, one for each layer, or one for each layer with experts. A file that
 * begins with '[' is a JSON list of numbers or of such lists, any other has a row a line, its numbers
 * separated by commas. KR_E_NOT_FOUND, KR_E_ARG (a model without experts), KR_E_FORMAT with row and
 * column, KR_E_LIMIT (64 MB), KR_E_MEMORY. */
kr_status kr_expert_shares_load(const char *path, const kr_model *model, kr_expert_shares *shares,
                                kr_err *err);
void kr_expert_shares_free(kr_expert_shares *shares);

/* Shares of experts that fall as rank^-skew, over a shuffle that depends on nothing but their number. */
void kr_expert_shares_power_law(double *share, uint32_t experts, double skew);

#endif
