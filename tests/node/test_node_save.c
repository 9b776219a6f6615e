/* Sessions in files: what is restored goes on as if nothing had happened; a file cut or damaged
 * anywhere, of another model, or that could not be written whole, restores nothing. */
#include "node_harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TOKENS = 300, MORE = 330 };

static char folder[] = "/tmp/karat-save-XXXXXX";

static harness_shape shape_of(const char *method)
{
    return (harness_shape){.layers = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .dim = 16,
                           .tokens_max = 512,
                           .context_max = 1024,
                           .type = KR_BF16,
                           .method = {method, method},
                           .window = {0, 0},
                           .budget = 64,
                           .save_folder = folder,
                           .pool_bytes = 1 << 20};
}

static kr_status file_message(harness *h, kr_msg_kind kind, uint64_t session, const char *name,
                              const char *blob, client_session *restored, char *blob_out)
{
    kr_msg_file file = {.session = session, .client_bytes = (uint32_t)strlen(blob)};
    const kr_piece pieces[] = {{&file, sizeof file}, {blob, strlen(blob)}};
    const uint8_t *tail;
    kr_message reply;

    snprintf(file.name, sizeof file.name, "%s", name);
    const kr_status status = harness_call(h, (kr_msg_header){.kind = (uint16_t)kind}, pieces, 2, &reply);
    if (status != KR_OK)
        return status;
    if (kind == KR_MSG_RESTORE) {
        assert_int_equal(
            kr_msg_opened_read(reply.payload, reply.header.payload_bytes, &restored->opened, &tail, NULL),
            KR_OK);
        memcpy(blob_out, tail, restored->opened.client_bytes);
        blob_out[restored->opened.client_bytes] = 0;
    }
    h->client->release(h->client, &reply);
    return KR_OK;
}

/* Tokens [from, to); the last message's outputs of layer 1 go to out when not NULL. */
static void feed(harness *h, const harness_shape *s, client_session *c, uint64_t from, uint64_t to,
                 bool prefill, float *out)
{
    kr_message reply;
    const client_run r = {c, from, (uint32_t)(to - from), prefill};

    for (uint32_t l = 0; l < s->layers; l++) {
        if (client_attend(h, s, &r, 1, l, 0, NULL, 0, &reply) != KR_OK)
            fail_msg("attend: %s", h->error.text);
        if (l == 1 && out != NULL)
            memcpy(out, reply.payload, reply.header.payload_bytes);
        h->client->release(h->client, &reply);
    }
}

static uint64_t file_bytes(const char *name)
{
    char path[128];
    struct stat info;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

static uint32_t files_in_folder(void)
{
    DIR *d = opendir(folder);
    uint32_t n = 0;

    while (d != NULL && readdir(d) != NULL)
        n++;
    closedir(d);
    return n - 2;
}

static void restored_goes_on_alike(void **state)
{
    static float want[MORE * 64], got[MORE * 64];
    static const char *const methods[] = {"dense", "quest"};

    (void)state;
    for (uint32_t m = 0; m < 2; m++) {
        const harness_shape s = shape_of(methods[m]);
        client_session c, back;
        char blob[64];
        harness h, other;

        harness_start(&h, &s);
        assert_int_equal(harness_configure(&h), KR_OK);
        client_init(&c, &s);
        for (uint64_t t = 0; t < MORE; t++)
            client_draw(&c, &s, 8, t);
        assert_int_equal(harness_open(&h, 800, NULL, 0, &c.opened), KR_OK);
        feed(&h, &s, &c, 0, TOKENS, true, NULL);
        assert_int_equal(file_message(&h, KR_MSG_SAVE, c.opened.session, "a.kv", "token ids", NULL, NULL),
                         KR_OK);
        assert_int_equal(file_message(&h, KR_MSG_SAVE, c.opened.session + 9, "b.kv", "", NULL, NULL),
                         KR_E_NOT_FOUND);
        feed(&h, &s, &c, TOKENS, MORE, false, want);
        harness_stop(&h);

        harness_start(&other, &s); /* another node, later */
        assert_int_equal(harness_configure(&other), KR_OK);
        back = c;
        assert_int_equal(file_message(&other, KR_MSG_RESTORE, 0, "a.kv", "", &back, blob), KR_OK);
        assert_string_equal(blob, "token ids");
        assert_int_equal(back.opened.tokens, TOKENS);
        feed(&other, &s, &back, TOKENS, MORE, false, got);
        assert_memory_equal(want, got, (MORE - TOKENS) * 64 * sizeof(float));
        assert_int_equal(file_message(&other, KR_MSG_RESTORE, 0, "none.kv", "", &back, blob), KR_E_NOT_FOUND);
        harness_stop(&other);
        client_free(&c);
    }
    assert_int_equal(files_in_folder(), 1);
}

/* Writes bytes [0, cut) of a.kv with bit flipped at flip (if it is below cut) as b.kv. */
static void write_variant(const uint8_t *data, uint64_t cut, uint64_t flip)
{
    char path[128];
    uint8_t *copy = malloc(cut + 1);

    snprintf(path, sizeof path, "%s/b.kv", folder);
    FILE *f = fopen(path, "wb");
    memcpy(copy, data, cut);
    if (flip < cut)
        copy[flip] ^= 0x10;
    assert_true(f != NULL && fwrite(copy, 1, cut, f) == cut);
    fclose(f);
    free(copy);
}

/* Pitfalls K-14, K-02. */
static void damaged_files_restore_nothing(void **state)
{
    const harness_shape s = shape_of("quest");
    const uint64_t bytes = file_bytes("a.kv");
    kr_msg_device_stats device[KR_MSG_DEVICES_MAX];
    client_session c;
    char path[128], blob[64];
    uint8_t *data = malloc(bytes + 1);
    harness h;

    (void)state;
    snprintf(path, sizeof path, "%s/a.kv", folder);
    FILE *f = fopen(path, "rb");
    assert_true(bytes > 4096 && f != NULL && fread(data, 1, bytes, f) == bytes);
    fclose(f);
    harness_start(&h, &s);
    assert_int_equal(harness_configure(&h), KR_OK);
    for (uint64_t cut = 0; cut < bytes; cut += cut < 1200 ? 41 : 509) {
        write_variant(data, cut, UINT64_MAX);
        assert_int_equal(file_message(&h, KR_MSG_RESTORE, 0, "b.kv", "", &c, blob), KR_E_FORMAT);
    }
    for (uint64_t flip = 0; flip < bytes; flip += flip < 1200 ? 7 : 251) {
        write_variant(data, bytes, flip);
        const kr_status status = file_message(&h, KR_MSG_RESTORE, 0, "b.kv", "", &c, blob);
        if (status == KR_OK)
            fail_msg("a file with byte %llu damaged was restored", (unsigned long long)flip);
        assert_true(h.error.text[0] != 0);
    }
    data[bytes] = 0;
    write_variant(data, bytes + 1, UINT64_MAX); /* goes on after its end */
    assert_int_equal(file_message(&h, KR_MSG_RESTORE, 0, "b.kv", "", &c, blob), KR_E_FORMAT);
    assert_int_equal(harness_stats(&h, device).sessions, 0);
    assert_int_equal(device[0].pages_used[0], 0);
    assert_int_equal(file_message(&h, KR_MSG_RESTORE, 0, "a.kv", "", &c, blob), KR_OK);
    harness_stop(&h);
    free(data);
}

static void foreign_files_are_refused(void **state)
{
    client_session c;
    char blob[64];

    (void)state;
    for (uint32_t kind = 0; kind < 4; kind++) {
        harness_shape s = shape_of(kind == 0 ? "dense" : "quest");
        harness h;

        s.type = kind == 1 ? KR_F16 : KR_BF16;
        s.context_max = kind == 2 ? 512 : 1024;
        harness_start(&h, &s);
        h.configure.fingerprint += kind == 3;
        assert_int_equal(harness_configure(&h), KR_OK);
        assert_int_equal(file_message(&h, KR_MSG_RESTORE, 0, "a.kv", "", &c, blob),
                         kind == 2 ? KR_E_LIMIT : KR_E_SHAPE);
        harness_stop(&h);
    }
}

/* Pitfall K-08: a save that runs out of room leaves the old file, or none. */
static void failed_saves_are_invisible(void **state)
{
    const harness_shape s = shape_of("dense");
    const uint64_t before = file_bytes("a.kv");
    const uint32_t files = files_in_folder();
    struct rlimit limit, small;
    client_session c;
    harness h;

    (void)state;
    harness_start(&h, &s);
    assert_int_equal(harness_configure(&h), KR_OK);
    client_init(&c, &s);
    for (uint64_t t = 0; t < TOKENS; t++)
        client_draw(&c, &s, 9, t);
    assert_int_equal(harness_open(&h, 800, NULL, 0, &c.opened), KR_OK);
    feed(&h, &s, &c, 0, TOKENS, true, NULL);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    for (rlim_t most = 0; most < before / 2; most += 4000) { /* the disk is full after so many bytes */
        small.rlim_cur = most;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        const kr_status old = file_message(&h, KR_MSG_SAVE, c.opened.session, "a.kv", "", NULL, NULL);
        const kr_status new = file_message(&h, KR_MSG_SAVE, c.opened.session, "new.kv", "", NULL, NULL);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        assert_int_equal(old, KR_E_IO);
        assert_int_equal(new, KR_E_IO);
        assert_int_equal(file_bytes("a.kv"), before);
        assert_int_equal(file_bytes("new.kv"), 0);
        assert_int_equal(files_in_folder(), files); /* no temporary file is left */
    }
    assert_int_equal(file_message(&h, KR_MSG_SAVE, c.opened.session, "../x", "", NULL, NULL), KR_E_FORMAT);
    assert_int_equal(file_message(&h, KR_MSG_SAVE, c.opened.session, "new.kv", "", NULL, NULL), KR_OK);
    feed(&h, &s, &c, TOKENS - 0, TOKENS + 1, false, NULL); /* the session itself is as it was */
    harness_stop(&h);
    client_free(&c);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    static const char *const names[] = {"a.kv", "b.kv", "new.kv"};
    char path[128];

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restored_goes_on_alike),
        cmocka_unit_test(damaged_files_restore_nothing),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(failed_saves_are_invisible),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
