/* The header and the payload readers: what was written is read back, and every field that an
 * attacker could choose is refused outside its range. */
#include "tests/test.h"

#include "base/rng.h"
#include "wire/msg.h"
#include "wire/payload.h"

static kr_msg_header some_header(void)
{
    return (kr_msg_header){.kind = KR_MSG_ATTEND,
                           .epoch = 7,
                           .micro_batch = 1,
                           .layer = 3,
                           .device = 2,
                           .rows = 5,
                           .sequence = 99,
                           .step = 12,
                           .flags = KR_MSG_WANT_SELECTION};
}

static void seal_then_read_gives_the_same(void **state)
{
    (void)state;
    uint8_t payload[100], bytes[KR_MSG_HEADER_BYTES];
    kr_msg_header h = some_header(), back;
    kr_err err;

    for (size_t i = 0; i < sizeof payload; i++)
        payload[i] = (uint8_t)(i * 7);
    kr_msg_seal(&h, payload, sizeof payload, bytes);
    assert_int_equal(kr_msg_header_read(bytes, &back, &err), KR_OK);
    assert_memory_equal(&h, &back, sizeof h);
    assert_int_equal(kr_msg_verify(&back, payload, &err), KR_OK);
}

/* The layout is the protocol: these bytes were laid out by hand from docs/wire.md. */
static void wire_form_is_fixed(void **state)
{
    (void)state;
    uint8_t bytes[KR_MSG_HEADER_BYTES];
    kr_msg_header h = some_header();
    static const uint8_t expected[KR_MSG_HEADER_BYTES - 16 - 16] = {
        'K', 'R', 'A', 'R', 1, 0, 13, 0, 7, 0, 0, 0, 1, 0, 3, 0, 2, 0, 0, 0, 5, 0, 0, 0, 99};

    kr_msg_seal(&h, NULL, 0, bytes);
    assert_memory_equal(bytes, expected, sizeof expected);
    assert_int_equal(bytes[32], 12); /* step */
    assert_int_equal(bytes[40], 0);  /* payload_bytes */
    assert_int_equal(bytes[56], 1);  /* flags */
}

/* Every single bit of header and payload is covered by a check. */
static void any_flipped_bit_is_noticed(void **state)
{
    (void)state;
    uint8_t payload[24] = "some payload bytes", bytes[KR_MSG_HEADER_BYTES];
    kr_msg_header h = some_header(), back;

    kr_msg_seal(&h, payload, sizeof payload, bytes);
    for (unsigned bit = 0; bit < 8 * (sizeof bytes + sizeof payload); bit++) {
        uint8_t *byte = bit / 8 < sizeof bytes ? &bytes[bit / 8] : &payload[bit / 8 - sizeof bytes];
        *byte ^= (uint8_t)(1u << bit % 8);
        kr_status status = kr_msg_header_read(bytes, &back, NULL);
        /* A changed length is refused by the link, which reads that many bytes; here it is the
         * checksum over the bytes we have. */
        if (status == KR_OK && back.payload_bytes == sizeof payload)
            status = kr_msg_verify(&back, payload, NULL);
        else if (status == KR_OK)
            status = KR_E_FORMAT;
        assert_int_not_equal(status, KR_OK);
        *byte ^= (uint8_t)(1u << bit % 8);
    }
}

static kr_status read_changed(void (*change)(kr_msg_header *), kr_err *err)
{
    uint8_t bytes[KR_MSG_HEADER_BYTES];
    kr_msg_header h = some_header(), back;

    kr_msg_seal(&h, NULL, 0, bytes);
    change(&h);
    kr_msg_header_write(&h, bytes);
    return kr_msg_header_read(bytes, &back, err);
}

static void magic(kr_msg_header *h) { h->magic = 0x20544547; /* "GET " */ }
static void version(kr_msg_header *h) { h->version = 2; }
static void kind_zero(kr_msg_header *h) { h->kind = 0; }
static void kind_end(kr_msg_header *h) { h->kind = KR_MSG_KIND_END; }
static void kind_far(kr_msg_header *h) { h->kind = 0xffff; }
static void flags(kr_msg_header *h) { h->flags = KR_MSG_FLAGS_ALL + 1; }
static void reserved(kr_msg_header *h) { h->reserved = 1; }
static void rows(kr_msg_header *h) { h->rows = KR_MSG_ROWS_MAX + 1; }
static void layer(kr_msg_header *h) { h->layer = KR_MSG_LAYERS_MAX; }
static void length(kr_msg_header *h) { h->payload_bytes = KR_MSG_PAYLOAD_MAX + 1; }
static void length_far(kr_msg_header *h) { h->payload_bytes = UINT64_MAX; }

static void header_fields_are_range_checked(void **state)
{
    (void)state;
    static const struct {
        void (*change)(kr_msg_header *);
        kr_status expected;
    } rows_of[] = {
        {magic, KR_E_FORMAT},    {version, KR_E_VERSION}, {kind_zero, KR_E_FORMAT}, {kind_end, KR_E_FORMAT},
        {kind_far, KR_E_FORMAT}, {flags, KR_E_FORMAT},    {reserved, KR_E_FORMAT},  {rows, KR_E_LIMIT},
        {layer, KR_E_LIMIT},     {length, KR_E_LIMIT},    {length_far, KR_E_LIMIT},
    };
    kr_err err;

    for (size_t i = 0; i < sizeof rows_of / sizeof rows_of[0]; i++)
        assert_int_equal(read_changed(rows_of[i].change, &err), rows_of[i].expected);
    assert_int_equal(read_changed(version, &err), KR_E_VERSION);
    assert_non_null(strstr(err.text, "version 2"));
    assert_non_null(strstr(err.text, "speaks 1"));
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(kr_msg_name(KR_MSG_END_PREFILL), "END_PREFILL");
    assert_string_equal(kr_msg_name(0), "?");
    assert_string_equal(kr_msg_name(KR_MSG_KIND_END), "?");
}

/* ---- rows and lists ---- */

static kr_status read_row(kr_msg_row row, uint64_t tokens_max)
{
    kr_msg_row out = {0};
    uint64_t used;

    return kr_msg_rows_read((const uint8_t *)&row, sizeof row, 1, tokens_max, &out, &used, NULL);
}

static void rows_are_checked(void **state)
{
    (void)state;
    const kr_msg_row good = {.session = (1ull << 32) | 1, .position = 5, .tokens = 4};
    kr_msg_row row = good, two[2] = {good, good}, out[2];
    uint64_t used;

    assert_int_equal(read_row(good, 4), KR_OK);
    assert_int_equal(read_row(good, 3), KR_E_LIMIT);
    row.session = 0;
    assert_int_equal(read_row(row, 9), KR_E_FORMAT);
    row.session = 1ull << 32; /* a generation but no slot */
    assert_int_equal(read_row(row, 9), KR_E_FORMAT);
    row = good, row.tokens = 0;
    assert_int_equal(read_row(row, 9), KR_E_FORMAT);
    row = good, row.is_prefill = 2;
    assert_int_equal(read_row(row, 9), KR_E_FORMAT);
    row = good, row.position = UINT64_MAX - 2;
    assert_int_equal(read_row(row, 9), KR_E_FORMAT);
    row = good, row.reserved = 1;
    assert_int_equal(read_row(row, 9), KR_E_FORMAT);
    assert_int_equal(kr_msg_rows_read((uint8_t *)two, sizeof two, 2, 8, out, &used, NULL), KR_OK);
    assert_int_equal(used, sizeof two);
    assert_memory_equal(out, two, sizeof two);
    assert_int_equal(kr_msg_rows_read((uint8_t *)two, sizeof two - 1, 2, 8, out, &used, NULL), KR_E_FORMAT);
    assert_int_equal(kr_msg_rows_read((uint8_t *)two, 64, UINT32_MAX, 8, out, &used, NULL), KR_E_FORMAT);
}

static kr_status read_lists(const uint32_t *words, uint32_t count, uint32_t lists, uint32_t end)
{
    uint32_t counts[4], indices[4];
    uint64_t used;

    return kr_msg_lists_read((const uint8_t *)words, 4ull * count, lists, end, counts, indices, 4, &used,
                             NULL);
}

static void lists_are_checked(void **state)
{
    (void)state;
    assert_int_equal(read_lists((uint32_t[]){2, 1, 0, 9, 3}, 5, 2, 10), KR_OK);
    assert_int_equal(read_lists((uint32_t[]){0, 0}, 2, 2, 10), KR_OK);
    assert_int_equal(read_lists((uint32_t[]){2, 1, 0, 9, 3}, 5, 2, 9), KR_E_FORMAT);  /* 9 is past the end */
    assert_int_equal(read_lists((uint32_t[]){2, 1, 4, 4, 3}, 5, 2, 10), KR_E_FORMAT); /* twice */
    assert_int_equal(read_lists((uint32_t[]){2, 1, 5, 4, 3}, 5, 2, 10), KR_E_FORMAT); /* descending */
    assert_int_equal(read_lists((uint32_t[]){2, 1, 0, 9, 3}, 4, 2, 10), KR_E_FORMAT); /* cut */
    assert_int_equal(read_lists((uint32_t[]){5, 0, 1, 2, 3, 4}, 6, 1, 10), KR_E_LIMIT);
    assert_int_equal(read_lists((uint32_t[]){UINT32_MAX, 1}, 2, 1, 10), KR_E_LIMIT);
    assert_int_equal(read_lists((uint32_t[]){1}, 1, UINT32_MAX, 10), KR_E_FORMAT);
    assert_int_equal(read_lists((uint32_t[]){2, UINT32_MAX - 1, UINT32_MAX}, 3, 1, UINT32_MAX), KR_E_FORMAT);
}

/* ---- control payloads ---- */

static void hello_welcome_path_are_checked(void **state)
{
    (void)state;
    kr_msg_hello hello = {.version_min = 1, .version_max = 3}, hello_back;
    kr_msg_welcome w = {.epoch = 1,
                        .devices = 1,
                        .beat_interval_ms = 500,
                        .dead_after_ms = 2000,
                        .payload_max = 1 << 20},
                   welcome_back;
    struct {
        kr_msg_path path;
        uint8_t address[8];
    } p = {{KR_PATH_SHM, 8, 42}, "address"};
    kr_msg_path path_back;
    const uint8_t *address;

    assert_int_equal(kr_msg_hello_read((uint8_t *)&hello, sizeof hello, &hello_back, NULL), KR_OK);
    assert_int_equal(kr_msg_hello_read((uint8_t *)&hello, sizeof hello - 1, &hello_back, NULL), KR_E_FORMAT);
    memset(hello.build, 'x', sizeof hello.build);
    assert_int_equal(kr_msg_hello_read((uint8_t *)&hello, sizeof hello, &hello_back, NULL), KR_E_FORMAT);

    assert_int_equal(kr_msg_welcome_read((uint8_t *)&w, sizeof w, &welcome_back, NULL), KR_OK);
    w.dead_after_ms = w.beat_interval_ms;
    assert_int_equal(kr_msg_welcome_read((uint8_t *)&w, sizeof w, &welcome_back, NULL), KR_E_FORMAT);
    w.dead_after_ms = 2000, w.payload_max = KR_MSG_PAYLOAD_MAX + 1;
    assert_int_equal(kr_msg_welcome_read((uint8_t *)&w, sizeof w, &welcome_back, NULL), KR_E_FORMAT);

    assert_int_equal(kr_msg_path_read((uint8_t *)&p, sizeof p, &path_back, &address, NULL), KR_OK);
    assert_memory_equal(address, "address", 8);
    assert_int_equal(kr_msg_path_read((uint8_t *)&p, sizeof p - 1, &path_back, &address, NULL), KR_E_FORMAT);
    p.path.transports = KR_PATH_ALL; /* an address belongs to one transport */
    assert_int_equal(kr_msg_path_read((uint8_t *)&p, sizeof p, &path_back, &address, NULL), KR_E_FORMAT);
    p.path.transports = 4;
    assert_int_equal(kr_msg_path_read((uint8_t *)&p, sizeof p, &path_back, &address, NULL), KR_E_FORMAT);
    p.path.address_bytes = KR_PATH_ADDRESS_MAX + 1, p.path.transports = 1;
    assert_int_equal(kr_msg_path_read((uint8_t *)&p, sizeof p, &path_back, &address, NULL), KR_E_LIMIT);
}

typedef struct {
    kr_msg_configure c;
    kr_msg_layer layer[2];
} configure_two;

static configure_two good_configure(void)
{
    return (configure_two){{.layers = 2,
                            .heads = 9,
                            .kv_heads = 3,
                            .key_dim = 64,
                            .value_dim = 64,
                            .kv_dtype = KR_BF16,
                            .softmax_scale = 0.125f,
                            .context_max = 8192,
                            .tokens_max = 512,
                            .groups = 1},
                           {{.index_owner = 0}, {.index_owner = 1}}};
}

static kr_status read_configure(configure_two m, uint64_t bytes)
{
    kr_msg_configure out;
    kr_msg_layer layers[KR_MSG_LAYERS_MAX];

    return kr_msg_configure_read((const uint8_t *)&m, bytes, &out, layers, NULL);
}

static void configure_is_checked(void **state)
{
    (void)state;
    const configure_two good = good_configure();
    configure_two m = good;

    assert_int_equal(read_configure(good, sizeof good), KR_OK);
    assert_int_equal(read_configure(good, sizeof good - 1), KR_E_FORMAT);
    for (uint32_t type = 0; type < 300; type++) {
        m = good, m.c.kv_dtype = type == 299 ? 0xffff : type;
        const bool legal = m.c.kv_dtype == KR_F32 || m.c.kv_dtype == KR_F16 || m.c.kv_dtype == KR_BF16;
        assert_int_equal(read_configure(m, sizeof m), legal ? KR_OK : KR_E_FORMAT);
    }
    m = good, m.c.layers = 0;
    assert_int_equal(read_configure(m, sizeof m), KR_E_FORMAT);
    m = good, m.c.layers = UINT32_MAX;
    assert_int_equal(read_configure(m, sizeof m), KR_E_FORMAT);
    m = good, m.c.softmax_scale = 0.0f / 0.0f;
    assert_int_equal(read_configure(m, sizeof m), KR_E_FORMAT);
    m = good, m.c.kv_heads = 0;
    assert_int_equal(read_configure(m, sizeof m), KR_E_FORMAT);
    m = good, m.c.groups = 3;
    assert_int_equal(read_configure(m, sizeof m), KR_E_FORMAT);
    m = good, m.layer[1].group = 1;
    assert_int_equal(read_configure(m, sizeof m), KR_E_FORMAT);
    m = good, m.layer[1].index_owner = 2;
    assert_int_equal(read_configure(m, sizeof m), KR_E_FORMAT);
}

static void sessions_are_checked(void **state)
{
    (void)state;
    struct {
        kr_msg_open open;
        kr_hash128 prefix[2];
    } o = {{.tokens_max = 100, .prefix_pages = 2}, {{1, 2}, {3, 4}}};
    kr_msg_session s = {.session = 1}, session_back;
    kr_msg_open open_back;
    const uint8_t *prefix;

    assert_int_equal(kr_msg_open_read((uint8_t *)&o, sizeof o, &open_back, &prefix, NULL), KR_OK);
    assert_int_equal(kr_msg_prefix_at(prefix, 1).low, 3);
    assert_int_equal(kr_msg_prefix_at(prefix, 1).high, 4);
    o.open.prefix_pages = 3;
    assert_int_equal(kr_msg_open_read((uint8_t *)&o, sizeof o, &open_back, &prefix, NULL), KR_E_FORMAT);
    o.open.prefix_pages = UINT32_MAX;
    assert_int_equal(kr_msg_open_read((uint8_t *)&o, sizeof o, &open_back, &prefix, NULL), KR_E_LIMIT);
    o.open.prefix_pages = 2, o.open.tokens_max = 0;
    assert_int_equal(kr_msg_open_read((uint8_t *)&o, sizeof o, &open_back, &prefix, NULL), KR_E_FORMAT);

    assert_int_equal(kr_msg_session_read((uint8_t *)&s, sizeof s, &session_back, &prefix, NULL), KR_OK);
    s.session = 0;
    assert_int_equal(kr_msg_session_read((uint8_t *)&s, sizeof s, &session_back, &prefix, NULL), KR_E_FORMAT);
}

static void file_names_stay_in_the_folder(void **state)
{
    (void)state;
    static const char *const bad[] = {"",    ".",           "..",  ".hidden", "../x",
                                      "a/b", "/etc/passwd", "a b", "a\n",     "\xff"};
    kr_msg_file file = {.name = "chat-7.kv_2"}, back;
    const uint8_t *blob;

    assert_int_equal(kr_msg_file_read((uint8_t *)&file, sizeof file, &back, &blob, NULL), KR_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        memset(file.name, 0, sizeof file.name);
        memcpy(file.name, bad[i], strlen(bad[i]));
        assert_int_equal(kr_msg_file_read((uint8_t *)&file, sizeof file, &back, &blob, NULL), KR_E_FORMAT);
    }
    memset(file.name, 'a', sizeof file.name); /* not ended */
    assert_int_equal(kr_msg_file_read((uint8_t *)&file, sizeof file, &back, &blob, NULL), KR_E_FORMAT);
}

static void errors_cross_the_wire(void **state)
{
    (void)state;
    uint8_t bytes[KR_MSG_ERROR_BYTES_MAX];
    kr_err cause, seen;
    int32_t code;

    (void)kr_fail(&cause, KR_E_FULL, "device 0: 65 pages asked, 64 exist");
    const uint32_t n = kr_msg_error_write(&cause, bytes);
    assert_int_equal(kr_msg_error_read(bytes, n, &seen), KR_E_FULL);
    assert_string_equal(seen.text, cause.text);
    assert_int_equal(kr_msg_error_read(bytes, n - 1, &seen), KR_E_FORMAT);
    for (code = -300; code < 300; code++) { /* an unknown or successful status is never passed on */
        memcpy(bytes, &code, 4);
        const kr_status status = kr_msg_error_read(bytes, n, &seen);
        assert_true(status == (kr_status)code || status == KR_E_FORMAT);
        assert_true(status < 0);
    }
}

/* Random bytes never crash a reader nor change its output on failure. */
static void random_payloads_are_refused_cleanly(void **state)
{
    (void)state;
    enum { ROUNDS = 20000, BYTES = 256 };
    kr_rng rng = test_rng("random payloads");
    uint8_t bytes[BYTES];

    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)kr_rng_next(&rng) & (round % 2 ? 0xff : 0x03);
        const uint64_t n = kr_rng_below(&rng, BYTES + 1);
        kr_msg_welcome welcome = {.client = 77};
        if (kr_msg_welcome_read(bytes, n, &welcome, NULL) != KR_OK)
            assert_int_equal(welcome.client, 77);
        kr_msg_row rows_out[8] = {{.session = 5}};
        uint64_t used;
        if (kr_msg_rows_read(bytes, n, 1 + (uint32_t)round % 8, 100, rows_out, &used, NULL) != KR_OK)
            assert_int_equal(rows_out[0].session, 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seal_then_read_gives_the_same),
        cmocka_unit_test(wire_form_is_fixed),
        cmocka_unit_test(any_flipped_bit_is_noticed),
        cmocka_unit_test(header_fields_are_range_checked),
        cmocka_unit_test(names),
        cmocka_unit_test(rows_are_checked),
        cmocka_unit_test(lists_are_checked),
        cmocka_unit_test(hello_welcome_path_are_checked),
        cmocka_unit_test(configure_is_checked),
        cmocka_unit_test(sessions_are_checked),
        cmocka_unit_test(file_names_stay_in_the_folder),
        cmocka_unit_test(errors_cross_the_wire),
        cmocka_unit_test(random_payloads_are_refused_cleanly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
