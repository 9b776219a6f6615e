/* A machine as karat measured itself on it: `karat profile` writes it, the simulator runs on it.
 *
 * A mode is one way in which compute side and memory node share the machine, measured with one model.
 * Its two device models hold a curve for every op of the step program; what messages cost lies in
 * them: qkv sends its rows, o_proj takes the reply, append receives and attend replies. Where
 * both sides work at once they were measured so, and what they cost each other is part of the times. What
 * depends on who waits is told apart:
 *
 *   signal_s   waking a receiver that sleeps costs the sender this; the link's latency is how long
 *              the receiver then takes to run
 *   remainder  what is left: how many times longer than simulated the steps of the fit took
 *
 * Figures hold for the threads and the CPU they were measured with, and for no other. */
#ifndef KR_DEVICE_MACHINE_H
#define KR_DEVICE_MACHINE_H

#include "device/device.h"

enum { KR_MACHINE_MODES_MAX = 12, KR_MACHINE_NAME_BYTES = 96 };

typedef enum {
    KR_MODE_IN_TURN, /* one thread drives both sides: one micro-batch, embedded */
    KR_MODE_AT_ONCE, /* the node has threads of its own in the same process */
    KR_MODE_REMOTE,  /* the node is another process of the machine */
} kr_machine_mode_kind;

enum { KR_MACHINE_MODE_KINDS = 3 };
/* "in-turn", "at-once", "remote"; NULL-terminated. */
extern const char *const kr_machine_mode_names[KR_MACHINE_MODE_KINDS + 1];

typedef struct {
    kr_machine_mode_kind kind;
    char model[KR_MACHINE_NAME_BYTES]; /* kr_model.name */
    char weights[KR_MACHINE_NAME_BYTES];
    uint32_t compute_threads, device_threads;
    double signal_s;
    double remainder; /* near 1 */
    kr_device_model compute, memory;
} kr_machine_mode;

typedef struct {
    char cpu[KR_MACHINE_NAME_BYTES];
    uint32_t cores;
    kr_machine_mode mode[KR_MACHINE_MODES_MAX];
    uint32_t modes;
} kr_machine;

/* KR_E_FORMAT names what is wrong; *machine is written on success only. */
kr_status kr_machine_load(const char *path, kr_machine *machine, kr_err *err);
kr_status kr_machine_json(const kr_machine *machine, json_t **root, kr_err *err);

/* The mode of a model (NULL: any), or NULL. */
const kr_machine_mode *kr_machine_find(const kr_machine *machine, kr_machine_mode_kind kind,
                                       const char *model);

#endif
