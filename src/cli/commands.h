/* The commands of karat: one line here, one file cmd_<name>.c, one function
 * int kr_cmd_<name>(int argc, char **argv), which returns the exit status: 0 done, 1 failed,
 * 2 used wrongly. argv[0] is the command's name.
 *
 * X(function suffix, name as typed, one-line summary) */
#ifndef KR_CLI_COMMANDS_H
#define KR_CLI_COMMANDS_H

#define KR_COMMAND_LIST(X)                                                            \
    X(run, "run", "runs a model with its KV cache on memory nodes")                   \
    X(node, "node", "serves memory to clients: KV caches and the work on them")       \
    X(eval, "eval", "compares retrieval methods with dense attention on a model")     \
    X(bench, "bench", "measures every kernel beside its limit on this machine")       \
    X(profile, "profile", "measures the runtime on this machine, for sim")            \
    X(sim, "sim", "simulates a cluster that serves a trace")                          \
    X(plan, "plan", "searches the best cluster under a power and a limit on latency") \
    X(reproduce, "reproduce", "runs the papers' experiments and judges their claims") \
    X(trace_stats, "trace-stats", "prints what a trace of sessions is like")          \
    X(inspect, "inspect", "prints what a model file or a saved session holds")

#define KR_COMMAND_DECLARE(suffix, name, summary) int kr_cmd_##suffix(int argc, char **argv);
KR_COMMAND_LIST(KR_COMMAND_DECLARE)
#undef KR_COMMAND_DECLARE

/* The same over the ranks of an MPI job (karat-sweep); NULL: alone. */
struct kr_ranks;
int kr_cmd_plan_on(const struct kr_ranks *ranks, int argc, char **argv);
int kr_cmd_reproduce_on(const struct kr_ranks *ranks, int argc, char **argv);

#endif
