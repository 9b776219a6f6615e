# karat: one Makefile. Objects under $(B)/; sources by wildcard; libraries by pkg-config.
#   make            build/karat and build/libkarat.a
#   make test       install Debian's packages if missing, build, run every test
#   make check      tests under address and undefined-behaviour sanitizers
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
B ?= build
ifeq ($(origin CC),default)
CC := gcc
endif
PKGS := jansson libxxhash libzstd libpcre2-8 hwloc numa ucx gnutls sqlite3
VERSION := 0.1.0
CPPFLAGS := -I. -Isrc -Iinclude -D_GNU_SOURCE -DKR_VERSION=\"$(VERSION)\"
WARN := -Wall -Wextra -Wshadow -Wvla -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Werror
CFLAGS := -std=c17 -O2 -g -ffp-contract=off -fno-math-errno -pthread $(WARN)
LDLIBS = -ldnnl $(shell pkg-config --libs jansson libxxhash libzstd libpcre2-8 hwloc gnutls sqlite3) -lnuma -lucp -lucs -lm -pthread
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
LIB_SRC := $(filter-out src/cli/%,$(SRC))
CLI_SRC := $(filter src/cli/%,$(SRC))
OBJ = $(patsubst %.c,$(B)/%.o,$(1))
TESTS := $(patsubst %.c,$(B)/%,$(shell find tests -name 'test_*.c' | sort))

all: $(B)/karat $(B)/libkarat.a

# The only per-file flags: one instruction set per file of ops/x86 and ops/arm.
$(B)/src/ops/x86/%_avx2.o: CFLAGS += -mavx2 -mfma -mf16c
$(B)/src/ops/x86/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512vnni -mfma -mf16c
$(B)/src/ops/x86/%_avx512bf16.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512bf16 -mfma -mf16c
$(B)/src/ops/x86/%_avx512fp16.o: CFLAGS += -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vbmi -mavx512fp16 -mfma -mf16c

$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(B)/libkarat.a: $(call OBJ,$(LIB_SRC))
	@rm -f $@
	ar rcs $@ $^

$(B)/karat: $(call OBJ,$(CLI_SRC)) $(B)/libkarat.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

# Tests of the command line link its objects too, without main.
$(B)/tests/cli/%: $(B)/tests/cli/%.o $(call OBJ,$(filter-out src/cli/main.c,$(CLI_SRC))) $(B)/libkarat.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

$(B)/tests/%: $(B)/tests/%.o $(B)/libkarat.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

-include $(shell find $(B) -name '*.d' 2>/dev/null)

clean:
	rm -rf $(B)

.PHONY: all clean
.SECONDARY:
