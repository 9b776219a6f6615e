# karat: one Makefile. Objects lie under $(B)/ and mirror the tree; sources are found by wildcard.
#
#   make                build/karat, build/libkarat.a and build/libkarat.so
#   make test           install what is missing (apt), fetch the test model (pip), build, run every test;
#                       T=tests/files runs a part
#   make check          every test again under the address and undefined-behaviour sanitizers
#   make tsan           the tests where threads meet, under the thread sanitizer
#   make arm-test       the ops and their tests for AArch64, under qemu-user
#   make fuzz           each fuzz target for FUZZ_SECONDS seconds (clang, libFuzzer, sanitizers)
#   make format         rewrite the sources with clang-format; format-check only looks
#   make tidy           clang-tidy
#   make oracle         the comparisons with other people's software (Python, slow)
#   make mutants        small changes to ops and methods, each of which a test must notice (minutes);
#                       MUTANTS="--jobs 1 select" narrows it
#   make bench          kernels beside this machine's limits
#   make bench-profile  predicted beside measured decode steps on this machine, into docs/planner.md
#   make bench-ggml     ggml's lightning indexer beside ours: GGML=FOLDER of a built llama.cpp
#   make demo           a small real model with its KV cache in a second process
#   make examples       examples/, against include/ and libkarat.so alone
#   make install        PREFIX=/usr/local, DESTDIR=
#
# Variables: V=1 shows commands, B build folder, CC compiler, SAN sanitizers (use a B of its own), T tests to run.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DELETE_ON_ERROR:

VERSION := 0.1.0
# KARAT_ABI of include/karat/karat.h.
ABI := 0
B ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
PREFIX ?= /usr/local
SAY = @$(if $(V),:,printf '%-4s %s\n')
Q := $(if $(V),,@)
FUZZ_SECONDS ?= 20
JOBS ?= $(shell nproc)

PKGS := jansson libxxhash libzstd zlib libpcre2-8 hwloc gnutls sqlite3
CPPFLAGS := -I. -Isrc -Iinclude -D_GNU_SOURCE -DKR_VERSION=\"$(VERSION)\"
WARN := -Wall -Wextra -Wshadow -Wvla -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wno-psabi -Werror
# One set of objects for the program, the archive and the shared object, which shows only KARAT_API.
CFLAGS := -std=c17 -O2 -g -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno -pthread $(WARN)
LDFLAGS := -Wl,--as-needed
# Recursive: asked at the first link, when tools/deps.sh has run.
LDLIBS = -ldnnl -lgomp $(shell pkg-config --libs $(PKGS)) -lnuma -lucp -lucs -lm -pthread
ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)

ifdef SAN
CFLAGS += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SAN)
endif

SRC := $(filter-out src/ops/x86/% src/ops/arm/% src/ops/cuda/%,$(shell find src -name '*.c' | sort))
ifeq ($(ARCH),x86_64)
SRC += $(sort $(wildcard src/ops/x86/*.c))
endif
ifeq ($(ARCH),aarch64)
SRC += $(sort $(wildcard src/ops/arm/*.c))
endif
# karat-sweep alone needs MPI, and is built where pkg-config knows Open MPI; nothing else links it.
MPI := $(shell pkg-config --exists ompi-c 2>/dev/null && echo ompi-c)
SWEEP_SRC := src/ranks/mpi.c src/cli/sweep.c
SRC := $(filter-out $(SWEEP_SRC),$(SRC))
LIB_SRC := $(filter-out src/cli/%,$(SRC))
CLI_SRC := $(filter src/cli/%,$(SRC))
OBJ = $(patsubst %.c,$(B)/%.o,$(1))

# T narrows what `make test` and its sanitizer forms run; tests without main are helpers.
T ?= tests
TEST_SRC := $(shell find $(T) -name 'test_*.c' 2>/dev/null | sort)
TESTS := $(patsubst %.c,$(B)/%,$(TEST_SRC))
TEST_SCRIPTS := $(shell find $(T) -name 'test_*.sh' 2>/dev/null | sort)
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
SMOKES := $(if $(filter tests tests/fuzz%,$(T)),$(patsubst fuzz_%,$(B)/tests/fuzz/smoke_%,$(FUZZERS)))
FORMATTED = $(shell find src include tests examples -name '*.[ch]' 2>/dev/null)

all: $(B)/karat $(B)/libkarat.a $(B)/libkarat.so $(B)/karat.pc $(if $(MPI),$(B)/karat-sweep)

# ---- compiling and linking

# The only per-file flags: one instruction set per file of ops/x86.
AVX512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi
$(B)/src/ops/x86/%_avx2.o: CFLAGS += -mavx2 -mfma -mf16c
$(B)/src/ops/x86/%_avx512.o: CFLAGS += $(AVX512) -mavx512vnni -mfma -mf16c
$(B)/src/ops/x86/%_avx512bf16.o: CFLAGS += $(AVX512) -mavx512bf16 -mfma -mf16c
$(B)/src/ops/x86/%_avx512fp16.o: CFLAGS += $(AVX512) -mavx512fp16 -mfma -mf16c

# Changed flags rebuild everything; unchanged ones leave the file, and so the objects, alone.
FLAGS_TEXT := $(CC) $(CPPFLAGS) $(CFLAGS) $(AVX512) $(LDFLAGS)
$(B)/flags: FORCE
	@mkdir -p $(@D); printf '%s\n' '$(FLAGS_TEXT)' | cmp -s - $@ || printf '%s\n' '$(FLAGS_TEXT)' > $@

$(B)/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/libkarat.a: $(call OBJ,$(LIB_SRC))
	$(SAY) AR $@
	@rm -f $@
	$(Q)ar rcs $@ $^

# Sanitizers leave their own symbols to the program. A client has threads in the library: it stays loaded.
$(B)/libkarat.so.$(ABI): $(call OBJ,$(LIB_SRC))
	$(SAY) LINK $@
	$(Q)$(CC) -shared -Wl,-soname,$(@F) -Wl,-z,nodelete $(if $(SAN),,-Wl,-z,defs) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(B)/libkarat.so: $(B)/libkarat.so.$(ABI)
	@ln -sf $(<F) $@

LINK = $(Q)$(CC) $(LDFLAGS) -o $@ $(filter %.o %.a,$^) $(LDLIBS)

$(B)/karat: $(call OBJ,$(CLI_SRC)) $(B)/libkarat.a
	$(SAY) LINK $@
	$(LINK)

$(B)/src/ranks/mpi.o: CPPFLAGS += $(shell pkg-config --cflags $(MPI) 2>/dev/null)
$(B)/karat-sweep: $(call OBJ,$(SWEEP_SRC) $(filter-out src/cli/main.c,$(CLI_SRC))) $(B)/libkarat.a
	$(SAY) LINK $@
	$(LINK) $(shell pkg-config --libs $(MPI))

# Tests of the command line link its objects too, without main.
$(B)/tests/cli/%: $(B)/tests/cli/%.o $(call OBJ,$(filter-out src/cli/main.c,$(CLI_SRC))) $(B)/libkarat.a
	$(SAY) LINK $@
	$(LINK) -lcmocka

$(B)/tests/fuzz/smoke_%: $(B)/tests/fuzz/fuzz_%.o $(B)/tests/fuzz/smoke_main.o $(B)/libkarat.a
	$(SAY) LINK $@
	$(LINK)

$(B)/tests/%: $(B)/tests/%.o $(B)/libkarat.a
	$(SAY) LINK $@
	$(LINK) -lcmocka

# Programs of bench/, one file each: make build/bench/bench_forward
$(B)/bench/%: $(B)/bench/%.o $(B)/libkarat.a
	$(SAY) LINK $@
	$(LINK)

-include $(shell find $(B) -name '*.d' 2>/dev/null)

# ---- testing

# Tests find the model by this variable and skip without it.
WITH_MODEL = model=$$(tools/fetch_model.sh); [ -z "$$model" ] || export KARAT_TEST_MODEL=$$model;

test:
	@tools/deps.sh build
	@$(WITH_MODEL) $(MAKE) --no-print-directory -j$(JOBS) B=$(B) tests-built && \
	    $(MAKE) --no-print-directory B=$(B) run-tests

tests-built: all $(TESTS) $(SMOKES)

# Runs what is built, one after another, so that tests which measure time have the machine.
run-tests: tests-built
	@KARAT=$(B)/karat KARAT_LIB=$(B)/libkarat.a KARAT_SAN=$(SAN) tools/run_tests.sh $(B)/test-output $(TESTS) $(TEST_SCRIPTS) $(SMOKES)

# The minutes-long forms of tests that are in the suite too: 10,000 random configurations of the simulator,
# a trace of 4 GB.
LONG_TESTS := sim/test_run workload/test_packed

long-test: $(addprefix $(B)/tests/,$(LONG_TESTS))
	@for t in $(LONG_TESTS); do echo "$$t"; KR_TEST_LONG=1 $(B)/tests/$$t || exit 1; done

# Events a second of the simulator beside the bare heap, a point and a grid of the paper.
bench-sim: $(B)/tests/sim/test_speed
	@$(B)/tests/sim/test_speed

# Prediction against measurement on this machine, into docs/planner.md; it should be idle.
bench-profile: all
	KARAT=$(B)/karat KARAT_MACHINE=$(B)/machine.json bench/profile_check.sh

# The ops built for AArch64 and their tests under qemu-user: for right results, not for speed.
ARM_CC := aarch64-linux-gnu-gcc
ARM_SRC = $(sort $(wildcard src/ops/*.c src/ops/arm/*.c)) $(addprefix src/base/,check.c clock.c num.c rng.c status.c)
ARM_TESTS := argmax attend_rows attend_tiled dsa_score index_key page_bounds score_rows select softmax

arm-test: $(patsubst %,$(B)/arm/test_%,$(ARM_TESTS))
	@for t in $^; do echo "$$t"; qemu-aarch64 $$t > $$t.log 2>&1 || { tail -5 $$t.log; exit 1; }; tail -1 $$t.log; done

$(B)/arm/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) ARM $<
	$(Q)$(ARM_CC) -Itests/arm $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/arm/test_%: $(B)/arm/tests/ops/test_%.o $(patsubst %.c,$(B)/arm/%.o,$(ARM_SRC))
	$(SAY) LINK $@
	$(Q)$(ARM_CC) -static -o $@ $^ -lm

check:
	@tools/deps.sh build
	@$(WITH_MODEL) export KARAT_TEST_SANITIZED=1; \
	    $(MAKE) --no-print-directory -j$(JOBS) B=$(B)/asan SAN=address,undefined tests-built && \
	    $(MAKE) --no-print-directory B=$(B)/asan SAN=address,undefined run-tests

# UCX's memory hooks run in threads that the sanitizer has already taken down; it can do without.
TSAN_ROOMS := base wire node engine api
tsan:
	@tools/deps.sh build
	@export UCX_MEM_EVENTS=no KARAT_TEST_SANITIZED=1 \
	    TSAN_OPTIONS="halt_on_error=1 suppressions=$(CURDIR)/tests/tsan.supp $$TSAN_OPTIONS"; \
	    dirs="$(wildcard $(addprefix tests/,$(TSAN_ROOMS)))"; \
	    $(MAKE) --no-print-directory -j$(JOBS) B=$(B)/tsan SAN=thread T="$$dirs" tests-built && \
	    $(MAKE) --no-print-directory B=$(B)/tsan SAN=thread T="$$dirs" run-tests

# libFuzzer over the optimised build with sanitizers, starting from the committed corpora. New inputs
# stay under $(B); a crash leaves its input there and fails.
fuzz:
	@tools/deps.sh lint
	@$(MAKE) --no-print-directory -j$(JOBS) B=$(B)/fuzz CC=clang SAN=fuzzer-no-link,address,undefined \
	    $(addprefix $(B)/fuzz/tests/fuzz/run_,$(FUZZERS))
	@for f in $(FUZZERS); do \
	    mkdir -p $(B)/fuzz/corpus/$$f; \
	    $(B)/fuzz/tests/fuzz/run_$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 \
	        -print_final_stats=1 -verbosity=0 -artifact_prefix=$(B)/fuzz/$$f- $(B)/fuzz/corpus/$$f \
	        tests/fuzz/corpus/$${f#fuzz_} > $(B)/fuzz/$$f.log 2>&1 || { tail -n 60 $(B)/fuzz/$$f.log; exit 1; }; \
	    echo "$$f: $$(sed -n 's/^stat::number_of_executed_units: *//p' $(B)/fuzz/$$f.log) inputs in" \
	        "$(FUZZ_SECONDS) s, no finding"; \
	done

$(B)/tests/fuzz/run_%: $(B)/tests/fuzz/%.o $(B)/libkarat.a
	$(CC) $(LDFLAGS) -fsanitize=fuzzer,address,undefined -o $@ $(filter %.o %.a,$^) $(LDLIBS)

oracle:
	tools/oracle.sh

mutants:
	@tools/deps.sh build
	tools/mutants.py --build $(B) $(MUTANTS)

bench: all
	$(B)/karat bench $(BENCH_ARGS)

bench-ggml: $(B)/libkarat.a
	B=$(B) bench/peers/ggml_indexer.sh $(GGML)/ggml/include $(GGML)/build/bin

demo:
	@tools/deps.sh build
	@$(MAKE) --no-print-directory -j$(JOBS) B=$(B) all
	@KARAT=$(B)/karat tools/demo.sh

# ---- examples, built as others would build them: by the public headers and the shared object

EXAMPLES := $(patsubst %.c,$(B)/%,$(filter-out examples/my_method.c,$(wildcard examples/*.c))) \
    $(B)/examples/my_method.so
EXAMPLE_CC = $(Q)$(CC) -std=c11 -O2 -g $(WARN) -Iinclude $(if $(SAN),-fsanitize=$(SAN))

examples: $(EXAMPLES)

$(B)/examples/%.so: examples/%.c
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(EXAMPLE_CC) -shared -fPIC $< -o $@

$(B)/examples/%: examples/%.c $(B)/libkarat.so
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(EXAMPLE_CC) $< -o $@ -L$(B) -lkarat -lm -Wl,-rpath,'$$ORIGIN/..'

# ---- source hygiene

format:
	@tools/deps.sh lint
	clang-format -i $(FORMATTED)

format-check:
	@tools/deps.sh lint
	clang-format --dry-run -Werror $(FORMATTED)

# TIDY narrows the files, for instance TIDY=src/base/*.c. One compiler run each: -P runs as many as JOBS.
TIDY ?= $(filter-out src/ops/arm/%,$(SRC))
tidy:
	@tools/deps.sh lint
	@printf '%s\n' $(TIDY) | xargs -P $(JOBS) -I{} tools/tidy.sh {} $(CPPFLAGS)

# ---- installing

define PC_TEXT
prefix=$(PREFIX)
libdir=$${prefix}/lib
includedir=$${prefix}/include

Name: karat
Description: sparse attention where the KV cache lives
Version: $(VERSION)
Libs: -L$${libdir} -lkarat
Libs.private: $(LDLIBS)
Cflags: -I$${includedir}
endef

LIB_DIR = $(DESTDIR)$(PREFIX)/lib

$(B)/karat.pc: export TEXT = $(PC_TEXT)
$(B)/karat.pc: FORCE
	@mkdir -p $(@D); printf '%s\n' "$$TEXT" > $@

install: all $(B)/karat.pc
	install -d $(DESTDIR)$(PREFIX)/bin $(LIB_DIR)/pkgconfig $(DESTDIR)$(PREFIX)/include/karat
	install -m 755 $(B)/karat $(DESTDIR)$(PREFIX)/bin/
	install -m 644 $(B)/libkarat.a $(LIB_DIR)/
	install -m 755 $(B)/libkarat.so.$(ABI) $(LIB_DIR)/libkarat.so.$(ABI).$(VERSION)
	ln -sf libkarat.so.$(ABI).$(VERSION) $(LIB_DIR)/libkarat.so.$(ABI)
	ln -sf libkarat.so.$(ABI) $(LIB_DIR)/libkarat.so
	install -m 644 $(wildcard include/karat/*.h) $(DESTDIR)$(PREFIX)/include/karat/
	install -m 644 $(B)/karat.pc $(LIB_DIR)/pkgconfig/
	install -d $(DESTDIR)$(PREFIX)/share/karat/devices $(DESTDIR)$(PREFIX)/share/karat/models
	install -m 644 data/devices/*.json $(DESTDIR)$(PREFIX)/share/karat/devices/
	install -m 644 data/models/*.json $(DESTDIR)$(PREFIX)/share/karat/models/
	[ ! -x $(B)/karat-sweep ] || install -m 755 $(B)/karat-sweep $(DESTDIR)$(PREFIX)/bin/

clean:
	rm -rf $(B)

FORCE:
.PHONY: all test long-test bench-sim bench-profile arm-test tests-built run-tests check tsan fuzz oracle mutants bench bench-ggml demo \
        examples format format-check tidy install clean FORCE
.SECONDARY:
