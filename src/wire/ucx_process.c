/* The signals are those that UCX 1.13 catches; ucs_debug_disable_signal restores what was there. */
#include "wire/ucx_process.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include "base/log.h"

static ucs_log_func_rc_t forward(const char *file, unsigned line, const char *name, ucs_log_level_t level,
                                 const ucs_log_component_config_t *component, const char *format,
                                 va_list args)
{
    char text[256];

    (void)file;
    (void)line;
    (void)component;
    vsnprintf(text, sizeof text, format, args);
    kr_log(level == UCS_LOG_LEVEL_FATAL ? KR_LOG_ERROR : KR_LOG_DEBUG, "ucx %s: %s", name, text);
    return UCS_LOG_FUNC_RC_STOP;
}

static void tame(void)
{
    static const int caught[] = {SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV};

    for (size_t i = 0; i < sizeof caught / sizeof caught[0]; i++)
        ucs_debug_disable_signal(caught[i]);
    ucs_log_push_handler(forward);
}

void kr_ucx_tame(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, tame);
}
