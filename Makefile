# umavez: `make help` lists the targets.
# Variables: SAN=address,undefined  COV=1  V=1  CC=clang  PREFIX=/usr/local  BUILD=build

BUILD  ?= build
PREFIX ?= /usr/local
CC     ?= cc
Q       = $(if $(V),,@)

# libev and hiredis (Debian 12) ship no usable .pc file; their headers and names are stable.
CPPFLAGS += -Iruntime -D_GNU_SOURCE $(shell pkg-config --cflags luajit libpq libcrypto)
CFLAGS   ?= -O2 -g
CFLAGS   += -std=c11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wno-unused-parameter -fno-omit-frame-pointer $(if $(WERROR),-Werror)
LDLIBS   += $(shell pkg-config --libs luajit libpq libcrypto) -lhiredis -lev -lm -ldl
LDFLAGS  += -rdynamic
ifdef SAN
CFLAGS   += -fsanitize=$(SAN) -fno-sanitize-recover=all
LDFLAGS  += -fsanitize=$(SAN)
endif
ifdef COV
CFLAGS   += --coverage
LDFLAGS  += --coverage
endif

SRC     = $(sort $(wildcard runtime/*/*.c))
LIBOBJ  = $(patsubst %.c,$(BUILD)/%.o,$(filter-out runtime/proc/main.c,$(SRC)))
MAINOBJ = $(BUILD)/runtime/proc/main.o
LIB     = $(BUILD)/libumavez.a
UNIT    = $(patsubst tests/unit/%.c,$(BUILD)/unit/%,$(sort $(wildcard tests/unit/test_*.c)))

.PHONY: all
all: $(BUILD)/umavez  ## build build/umavez (the default)

$(BUILD)/umavez: $(MAINOBJ) $(LIB)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(MAINOBJ) -Wl,--whole-archive $(LIB) -Wl,--no-whole-archive $(LDLIBS)

$(LIB): $(LIBOBJ)
	$(Q)rm -f $@ && ar rcs $@ $(LIBOBJ)

$(BUILD)/%.o: %.c Makefile
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/unit/%: tests/unit/%.c $(LIB)
	$(Q)mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -MMD -MP -o $@ $< $(LIB) -lcmocka $(LDLIBS)

.PHONY: unit
unit: $(UNIT)  ## build and run the C unit tests
	$(Q)for t in $(UNIT); do $$t || exit 1; done

.PHONY: clean
clean:  ## remove what was built
	rm -rf $(BUILD)

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
