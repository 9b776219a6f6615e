/* Measured times on grids of shapes: a file that tools/import_aiconfigurator.py or karat itself wrote.
 *
 * A table belongs to an op, or to matrix products of one type, and has one to three axes, each a
 * quantity of the job. Between grid points time is linear along each axis: kernels that stream bytes or
 * multiply are. Above the last point it follows the last two, but never falls; below the first it is
 * the first. Points that were not measured (null) are filled along the last axis by the same rule.
 * A point that was measured is measured, one between such is interpolated, any other extrapolated.
 *
 * File: {"karat_tables": 1, "device": NAME, "source": TEXT, "tables": [{"op": NAME or "matrix",
 * "kernel": TEXT, "model", "math", "method": "dense" or "sparse", "in", "out": all optional, what it
 * is of; "axes": [{"of": QUANTITY, "at": [ascending]}], "us": [row-major numbers or nulls]}]}. */
#ifndef KR_DEVICE_TABLES_H
#define KR_DEVICE_TABLES_H

#include "device/device.h"

enum { KR_TABLES_MAX = 256, KR_TABLE_AXES_MAX = 3, KR_TABLE_POINTS_MAX = 1 << 19 };

/* Adds to *time what the first table says that fits: of the job's op, or of matrix products when matrix
 * is not NULL (a product of several side by side has no table). false: none fits. */
bool kr_device_tables_add(const kr_device_tables *tables, const kr_device_job *job, const kr_matrix *matrix,
                          kr_device_time *time);

#endif
