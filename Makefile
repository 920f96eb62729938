# umavez: `make help` lists the targets.
# Variables: SAN=address,undefined  COV=1  V=1  CC=clang  PREFIX=/usr/local  BUILD=build

BUILD  ?= build
PREFIX ?= /usr/local
CC     ?= cc
Q       = $(if $(V),,@)

# libev and hiredis (Debian 12) ship no usable .pc file; their headers and names are stable.
CPPFLAGS += -Iruntime -D_GNU_SOURCE $(shell pkg-config --cflags luajit libpq libcrypto libmicrohttpd)
CFLAGS   ?= -O2 -g
CFLAGS   += -std=c11 -Wall -Wextra -Wshadow -Wstrict-prototypes -Wno-unused-parameter -fno-omit-frame-pointer $(if $(WERROR),-Werror)
LDLIBS   += $(shell pkg-config --libs luajit libpq libcrypto libmicrohttpd) -lhiredis -lev -lm -ldl
LDFLAGS  += -rdynamic
ifdef SAN
CFLAGS   += -fsanitize=$(SAN) -fno-sanitize-recover=all
LDFLAGS  += -fsanitize=$(SAN)
endif
ifdef COV
CFLAGS   += --coverage
LDFLAGS  += --coverage
endif

# A build of its own (`make failpoints`); a release knows nothing of failpoints.
ifdef FAILPOINTS
CPPFLAGS += -DUMAVEZ_FAILPOINTS
SRC     = $(sort $(wildcard runtime/*/*.c))
else
SRC     = $(sort $(filter-out runtime/base/failpoint.c,$(wildcard runtime/*/*.c)))
endif
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

.PHONY: unit-programs
unit-programs: $(UNIT)

.PHONY: unit
unit: $(UNIT)  ## build and run the C unit tests
	$(Q)for t in $(UNIT); do $$t || exit 1; done

.PHONY: check
check:  ## run every test; `tests/run SUITE...` runs some
	$(Q)tests/run

.PHONY: check-long
check-long:  ## every test whole: long waits, the long fault run, long fuzzing
	$(Q)tests/run --long
	$(Q)$(MAKE) fuzz

.PHONY: lint
lint:  ## luacheck, layers, lengths, docs that follow their tables
	$(Q)tests/lint/run $(BUILD)

.PHONY: docs-check
docs-check: all  ## the pages follow their tables, and every snippet is run (or says why it cannot be, and is listed)
	$(Q)$(BUILD)/umavez exec tests/lint/docs.lua && $(BUILD)/umavez exec tests/lint/events.lua
	$(Q)UMAVEZ_BIN=$(abspath $(BUILD))/umavez /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/e2e/test_docs.py tests/e2e/test_door_docs.py \
	  tests/sql/test_keys_page.py tests/e2e/test_author.py::test_the_guides_snippets_run

.PHONY: asan
asan:  ## build with ASan and UBSan into build-asan and run the tests on it
	$(Q)ASAN_OPTIONS=detect_leaks=1 SAN=address,undefined BUILD=build-asan tests/run build unit spec e2e

.PHONY: failpoints
failpoints:  ## build build-failpoints/umavez, for the fault matrix (tests/chaos)
	$(Q)$(MAKE) FAILPOINTS=1 BUILD=$(BUILD)-failpoints all

.PHONY: valgrind
valgrind: all  ## a short run under valgrind
	$(Q)tests/valgrind

.PHONY: soak
soak: all  ## half an hour of mixed load under random faults: what a worker holds must end where it began
	$(Q)UMAVEZ_SOAK_SECONDS=$${UMAVEZ_SOAK_SECONDS:-1800} /usr/bin/python3 -m pytest -q -s -p no:cacheprovider tests/chaos/test_soak.py

.PHONY: chaos
chaos:  ## the fault suite: every step of the runner x every fault, a hostile Valkey, random faults
	$(Q)tests/run matrix chaos

.PHONY: model
model:  ## the protocol's models, to their last state (spin)
	$(Q)tests/model/run

.PHONY: fuzz
fuzz:  ## the parsers against random and mutated input
	$(Q)tests/fuzz/run

.PHONY: check-systemd
check-systemd:  ## the Debian package under a real systemd, in an emulated Debian 13 (root, qemu; some 30 minutes)
	$(Q)tests/service/run

.PHONY: bench
bench:  ## figures beside the floor of pgbench
	$(Q)$(MAKE) all && tests/bench/run $(BENCHFLAGS)

.PHONY: bench-door
bench-door:  ## the HTTP door under 3000 connections; figures for docs/http.md with BENCHFLAGS=--write
	$(Q)$(MAKE) all && tests/bench/door $(BENCHFLAGS)

# The peers' tool and what it installs (npm) are not part of this tree.
PEERS ?= ../shared/peers/bench

.PHONY: bench-peers
bench-peers:  ## umavez beside Graphile Worker and pg-boss on the same work; PEERS=TOOL, BENCH_PEERS=NAME:MODE,…
	$(Q)$(MAKE) all && $(PEERS) install && tests/bench/run --peers $(PEERS) $(BENCHFLAGS)

.PHONY: bench-smoke
bench-smoke:  ## the benchmark, tiny: crashes and correctness only
	$(Q)$(MAKE) all && tests/bench/run --smoke

# Where `install` puts things: the program finds share/umavez/lua beside its own bin/ (runtime/proc/main.c).
SHARE = $(DESTDIR)$(PREFIX)/share/umavez
DOC   = $(DESTDIR)$(PREFIX)/share/doc/umavez
MAN   = $(DESTDIR)$(PREFIX)/share/man/man1
UNIT_DIR ?= $(PREFIX)/lib/systemd/system
DATA  = find lua sql tasks examples -type f \( -name '*.lua' -o -name '*.sql' -o -name '*.jsonl' -o -path 'lua/umavez/ui/*' \)

$(MAINOBJ): CPPFLAGS += -DUMAVEZ_PREFIX='"$(PREFIX)"'

$(BUILD)/umavez.1: $(BUILD)/umavez contrib/man.lua $(wildcard lua/umavez/*.lua lua/umavez/cli/*.lua)
	$(Q)$(BUILD)/umavez exec contrib/man.lua >$@.$$$$ && mv $@.$$$$ $@

.PHONY: man
man: $(BUILD)/umavez.1  ## the manual page, build/umavez.1

.PHONY: install
install: all man  ## install below PREFIX (DESTDIR is put before it): program, library, SQL, tasks, docs, manual page, systemd unit
	$(Q)install -D -m 755 $(BUILD)/umavez $(DESTDIR)$(PREFIX)/bin/umavez
	$(Q)$(DATA) | while read -r f; do install -D -m 644 $$f $(SHARE)/$$f || exit 1; done
	$(Q)install -D -m 644 -t $(SHARE)/contrib contrib/grafana-dashboard.json contrib/alerts.yml
	$(Q)install -D -m 644 -t $(DOC) docs/*.md README.md README.pt-BR.md CHANGELOG.md LICENSE
	$(Q)install -D -m 644 -t $(DOC)/ui docs/ui/*.png
	$(Q)install -D -m 644 -t $(MAN) $(BUILD)/umavez.1
	$(Q)install -d $(DESTDIR)$(UNIT_DIR)
	$(Q)sed 's|/usr/local/bin/|$(PREFIX)/bin/|' contrib/umavez.service >$(DESTDIR)$(UNIT_DIR)/umavez.service
	$(Q)chmod 644 $(DESTDIR)$(UNIT_DIR)/umavez.service

.PHONY: uninstall
uninstall:  ## remove what `install` with the same PREFIX has put there; settings and tasks of yours are left alone
	$(Q)rm -f $(DESTDIR)$(PREFIX)/bin/umavez $(MAN)/umavez.1 $(DESTDIR)$(UNIT_DIR)/umavez.service
	$(Q)rm -rf $(SHARE) $(DOC)

# What a package is made of: the program's sources and data, without tests and tools.
PACKED = Makefile LICENSE README.md README.pt-BR.md CHANGELOG.md contrib docs examples lua runtime sql tasks

PACKAGES ?= $(BUILD)/deb
# What this make was called with is not for the package's own.
FRESH = $(foreach name,MAKEFLAGS MAKEOVERRIDES MFLAGS MAKELEVEL BUILD PREFIX DESTDIR PACKAGES CC SAN COV FAILPOINTS WERROR,-u $(name))

.PHONY: deb
deb:  ## build build/deb/umavez_*.deb (needs build-essential and debhelper, see docs/install.md); lintian looks at it, where it is
	$(Q)command -v dh >/dev/null && command -v dpkg-buildpackage >/dev/null || \
	  { echo "make deb: debhelper is not installed: apt-get install build-essential debhelper" >&2; exit 1; }
	$(Q)rm -rf $(PACKAGES)/umavez $(PACKAGES)/umavez[-_]* && mkdir -p $(PACKAGES)/umavez
	$(Q)tar -c $(PACKED) | tar -x -C $(PACKAGES)/umavez && mv $(PACKAGES)/umavez/contrib/debian $(PACKAGES)/umavez/debian
	$(Q)cd $(PACKAGES)/umavez && env $(FRESH) dpkg-buildpackage -b -us -uc
	$(Q)if command -v lintian >/dev/null; then lintian --fail-on error,warning $(PACKAGES)/umavez_*.changes; fi

# `luarocks make` calls these two. A rock's bin/ is copied away from the rest of it, so the program stays in the rock's own folder
# with its data, and a launcher goes to bin/, which also lets it find the rocks of the same tree.
.PHONY: rock
rock:
	$(Q)if { printf '#include <%s>\n' lua.h libpq-fe.h ev.h hiredis/hiredis.h microhttpd.h openssl/evp.h; \
	  echo 'int main(void) { return 0; }'; } | $(CC) $(CPPFLAGS) -x c - -o $${TMPDIR:-/tmp}/umavez-probe.$$$$ $(LDLIBS); then \
	  rm -f $${TMPDIR:-/tmp}/umavez-probe.$$$$; $(MAKE) all; \
	else rm -f $(BUILD)/umavez; \
	  echo "umavez: libraries of the program are missing (see README.md): only the Lua library is installed" >&2; fi

ROCK_TREE = $(abspath $(PREFIX)/../../../../..)

.PHONY: install-rock
install-rock:
	$(Q)cd lua && find umavez -name '*.lua' | while read -r f; do install -D -m 644 $$f $(LUADIR)/$$f || exit 1; done
	$(Q)if [ -x $(BUILD)/umavez ]; then \
	  install -D -m 755 $(BUILD)/umavez $(PREFIX)/program/bin/umavez && \
	  $(DATA) | while read -r f; do install -D -m 644 $$f $(PREFIX)/program/share/umavez/$$f || exit 1; done && \
	  install -d $(BINDIR) && printf '%s\n' '#!/bin/sh' \
	    'export LUA_PATH="$(ROCK_TREE)/share/lua/5.1/?.lua;$(ROCK_TREE)/share/lua/5.1/?/init.lua;$${LUA_PATH-;}"' \
	    'export LUA_CPATH="$(ROCK_TREE)/lib/lua/5.1/?.so;$${LUA_CPATH-;}"' \
	    'exec "$(PREFIX)/program/bin/umavez" "$$@"' >$(BINDIR)/umavez && chmod 755 $(BINDIR)/umavez; fi

.PHONY: clean
clean:  ## remove what was built
	rm -rf $(BUILD)

.PHONY: help
help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 14

-include $(shell find $(BUILD) \( -path $(BUILD)/deb -o -path $(BUILD)/systemd \) -prune -o -name '*.d' -print 2>/dev/null)
