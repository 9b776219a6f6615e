/* Points of a search in an SQLite file, for comparison over time. */
#include <sqlite3.h>

#include "plan/search.h"

static const char SCHEMA[] =
    "CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, written TEXT DEFAULT CURRENT_TIMESTAMP, model "
    "TEXT, "
    "method TEXT, trace TEXT, system TEXT, gpus INTEGER, devices INTEGER, ep INTEGER, tp INTEGER, "
    "micro_batches INTEGER, seed INTEGER, tdp_w REAL, sessions INTEGER, tokens_per_s REAL, "
    "tokens_per_s_per_w REAL, "
    "p99_s REAL, compute_busy REAL, device_busy REAL, pareto INTEGER, reason TEXT, run_digest TEXT)";

static const char INSERT[] =
    "INSERT INTO runs (model, method, trace, system, gpus, devices, ep, tp, micro_batches, seed, tdp_w, "
    "sessions, "
    "tokens_per_s, tokens_per_s_per_w, p99_s, compute_busy, device_busy, pareto, reason, run_digest) "
    "VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";

static void bind_point(sqlite3_stmt *q, const kr_search *s, uint32_t i, const char *trace)
{
    const kr_study_job *j = &s->job[i];
    const kr_scenario_options *o = &j->scenario;
    const kr_study_result *r = &j->result;
    char digest[17];
    int n = 0;

    snprintf(digest, sizeof digest, "%016llx", (unsigned long long)r->first.digest);
    sqlite3_bind_text(q, ++n, o->model, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(q, ++n, o->method, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(q, ++n, trace, -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(q, ++n, kr_system_names[o->system], -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, ++n, o->gpus);
    sqlite3_bind_int64(q, ++n, o->devices);
    sqlite3_bind_int64(q, ++n, o->ep);
    sqlite3_bind_int64(q, ++n, o->tp);
    sqlite3_bind_int64(q, ++n, o->micro_batches);
    sqlite3_bind_int64(q, ++n, (sqlite3_int64)j->study.seed);
    sqlite3_bind_double(q, ++n, j->tdp_w);
    sqlite3_bind_int64(q, ++n, r->sessions);
    sqlite3_bind_double(q, ++n, r->tokens_per_s);
    sqlite3_bind_double(q, ++n, r->tokens_per_s_per_w);
    sqlite3_bind_double(q, ++n, r->p99_s);
    sqlite3_bind_double(q, ++n, r->first.busy[KR_ON_COMPUTE]);
    sqlite3_bind_double(q, ++n, r->first.busy[KR_ON_DEVICE]);
    sqlite3_bind_int64(q, ++n, s->pareto[i]);
    sqlite3_bind_text(q, ++n, s->why[i], -1, SQLITE_TRANSIENT);
    sqlite3_bind_text(q, ++n, digest, -1, SQLITE_TRANSIENT);
}

static int insert_all(sqlite3 *db, const kr_search *s, const char *trace)
{
    sqlite3_stmt *q = NULL;
    int code = sqlite3_prepare_v2(db, INSERT, -1, &q, NULL);

    for (uint32_t i = 0; i < s->points && code == SQLITE_OK; i++) {
        bind_point(q, s, i, trace);
        code = sqlite3_step(q) == SQLITE_DONE ? sqlite3_reset(q) : sqlite3_errcode(db);
    }
    sqlite3_finalize(q);
    return code;
}

kr_status kr_search_store(const kr_search *search, const char *path, const char *trace, kr_err *err)
{
    sqlite3 *db = NULL;
    kr_status status = KR_OK;
    int code = sqlite3_open(path, &db);

    if (code == SQLITE_OK)
        code = sqlite3_busy_timeout(db, 5000);
    if (code == SQLITE_OK)
        code = sqlite3_exec(db, SCHEMA, NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_exec(db, "BEGIN", NULL, NULL, NULL);
    if (code == SQLITE_OK)
        code = insert_all(db, search, trace);
    if (code == SQLITE_OK)
        code = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    if (code != SQLITE_OK)
        status = kr_fail(err, KR_E_IO, "%s: %.160s", path,
                         db != NULL ? sqlite3_errmsg(db) : "cannot be opened");
    sqlite3_close(db);
    return status;
}
