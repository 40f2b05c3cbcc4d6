# SPDX-License-Identifier: MIT OR Apache-2.0
# make demo    builds with Rust and cc alone, runs the main job, prints the report's path
# make test    everything: lint, unit and property tests, the engine on real devices, real NVMe in a VM
# make test-long   real programs untouched and under `dwell run`, minutes each, postgres and mariadb among them
#              and the exerciser for EXERCISE_MINUTES=10 on each of its surfaces; fsx and pjdfstest on served directories, also on
#              Linux 6.1 and 7.2 in a VM; the unit dwell-serve@ under systemd in a VM; the packages in clean Debians; Miri on
#              what makes no system calls
# make trace-tool  builds the Valgrind tool with which `dwell lab trace record` records, part of make build where valgrind is installed
# make peers   builds the other runtimes and NFS clients that `dwell bench io --policies block,peer:NAME` and
#              `dwell bench nfs --contenders single,peer:NAME` measure beside it, and UMap for `dwell bench pager`
# make aarch64 builds the command and the libraries for aarch64, and runs under qemu-user the tests that need no device
# make fuzz    fuzzes the readers of traces, channels and NFS for a minute each (FUZZ_SECONDS=60)
# make install   installs command, libraries, dwell.h, dwell.pc, manual pages and completions under PREFIX (/usr/local), DESTDIR before it
# make deb     builds Debian packages in target/packages: dwell, and dwell-dbgsym with the debug symbols
# make tarball   the same as .tar.xz, for other distributions and for directories of one's own
# make fio-engine   builds target/fio/dwell.so, an engine for the fio that is installed
# make sqlite-vfs   builds target/sqlite/dwell_vfs.so, a VFS for SQLite as a loadable extension
# make book    builds the pages of docs/ as a book in target/book; takes mdbook (cargo install mdbook)
# make wheel   builds the Python module with the command inside, target/wheels/dwell_io-….whl; make wheel-test tests it, on Ray too
# make figure ID=S4   measures one figure of the papers; CASE='4 KiB' some of its
#                    rows; `make figures` all that is stale, and rewrites the tables in docs/

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

CARGO ?= cargo
ID ?=
REPORT ?= target/report
PREFIX ?= /usr/local
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
FROM ?= target/release
FUZZ_SECONDS ?= 60
EXERCISE_MINUTES ?= 10
# As Cargo.toml has it.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
PROGRAMS := -p dwell-cli -p dwell-preload -p dwell-workloads
PEERS := --manifest-path peers/Cargo.toml --target-dir target

# Debian packages by the program or file that shows they are there. What cargo links with is all that a build and the demo need.
NEEDS := cc:gcc /usr/include/stdlib.h:libc6-dev
# Records traces.
NEEDS_TRACE := valgrind:valgrind
# Packs what is built.
NEEDS_PACKAGES := objcopy:binutils xz:xz-utils dpkg-shlibdeps:dpkg-dev
# Makes Debians of their own, where packages and units are tried.
NEEDS_DEBIANS := debootstrap:debootstrap mke2fs:e2fsprogs strip:binutils
# Devices, file systems and servers that tests and figures make.
NEEDS_TEST := $(NEEDS_TRACE) qemu-system-x86_64:qemu-system-x86 busybox:busybox-static dmsetup:dmsetup mkfs.ext4:e2fsprogs losetup:mount fio:fio pkg-config:pkg-config patch:patch fusermount3:fuse3 setfacl:acl setpriv:util-linux ip:iproute2
# The server that NFS is tested against.
NEEDS_TEST += ganesha.nfsd:nfs-ganesha /usr/lib/*/ganesha/libfsalvfs.so:nfs-ganesha-vfs /usr/lib/*/ganesha/libfsalmem.so:nfs-ganesha-mem rpcbind:rpcbind nft:nftables tc:iproute2
# NFS clients that are looked for when they are measured.
NEEDS_PEERS := /usr/lib/*/libnfs.so:libnfs-dev nfs-cp:libnfs-utils
NEEDS_UMAP := git:git cmake:cmake c++:g++
NEEDS_AARCH64 := aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu /usr/aarch64-linux-gnu/include/stdio.h:libc6-dev-arm64-cross qemu-aarch64:qemu-user
# What tests/programs runs, beside fio; the long form runs more.
NEEDS_PROGRAMS := sqlite3:sqlite3 /usr/include/sqlite3ext.h:libsqlite3-dev strace:strace db5.3_load:db5.3-util sysbench:sysbench redis-server:redis-server mdb_load:lmdb-utils db_bench:rocksdb-tools git:git
# The Python module.
NEEDS_PYTHON := python3:python3 /usr/lib/python3*/ensurepip:python3-venv
# Opens the reports.
NEEDS_PROGRAMS += chromium:chromium
# Builds the BPF object of dwell advise anew, to compare it with the committed one.
NEEDS_BPF := clang:clang llvm-strip:llvm /usr/include/bpf/bpf_helpers.h:libbpf-dev
# What the figures D4 and D5 run, beside those.
NEEDS_OLTP := /usr/include/sqlite3.h:libsqlite3-dev /usr/include/db.h:libdb5.3-dev /usr/lib/postgresql/*/bin/initdb:postgresql
# Recorded for the figures of the simulator.
NEEDS_WORKLOADS := xz:xz-utils /usr/games/stockfish:stockfish povray:povray
NEEDS_LONG_PROGRAMS := /usr/lib/postgresql/*/bin/initdb:postgresql mariadbd:mariadb-server-core mariadb-dump:mariadb-client

define TRACE_TOOL
if [ "$$(uname -m)" = x86_64 ] && command -v valgrind cc >/dev/null && [ -f /usr/include/valgrind/pub_tool_tooliface.h ]; \
then $(MAKE) --no-print-directory -C valgrind OUT=$(CURDIR)/target/valgrind; \
else echo "make: no valgrind with its headers, or no cc, or not x86-64: dwell lab trace record will not work" >&2; fi
endef

.PHONY: demo test test-long aarch64 install install-files deb tarball wheel wheel-test fio-engine sqlite-vfs lint msrv figure figures book peers build deps deny trace-tool fuzz

deps:
	@command -v $(CARGO) >/dev/null || { echo "make: a Rust toolchain is needed (rustup, or Debian's cargo 1.89 or newer)" >&2; exit 1; }
	@./scripts/packages $(NEEDS)

build: deps
	$(CARGO) build --release --locked $(PROGRAMS)
	@$(TRACE_TOOL)

# A program of its own, because it links Valgrind and has its licence.
trace-tool: deps
	@./scripts/packages $(NEEDS_TRACE)
	@$(TRACE_TOOL)

book:
	@command -v mdbook >/dev/null || { echo "make: mdbook is needed: cargo install mdbook" >&2; exit 1; }
	mdbook build docs

peers: deps
	@./scripts/packages $(NEEDS_PEERS) $(NEEDS_UMAP)
	$(CARGO) build --release --locked $(PEERS)
	@./scripts/umap

aarch64: deps
	@./scripts/packages $(NEEDS_AARCH64)
	./scripts/aarch64 build
	./scripts/aarch64 test

demo: deps
	$(CARGO) build --release --locked -p dwell-cli
	@./target/release/dwell bench io --out $(REPORT)

test: deps trace-tool lint
	@./scripts/packages $(NEEDS_TEST) $(NEEDS_PROGRAMS) $(NEEDS_PEERS) $(NEEDS_PYTHON)
	./scripts/test

test-long: build trace-tool deny
	@./scripts/packages $(NEEDS_TEST) $(NEEDS_PROGRAMS) $(NEEDS_LONG_PROGRAMS)
	./tests/programs/run-all --long
	$(CARGO) test --release --locked -p dwell-cli --test serve -- --ignored --nocapture
	DWELL_NFS_RESTARTS=1000 $(CARGO) test --locked -p dwell-nfs --test restart -- --nocapture
	DWELL_POWER_CUTS=150 ./vm/test --situation poll survives_a_power_cut
	./scripts/miri
	DWELL_RACE_ROUNDS=1000000 $(CARGO) test --release --locked -p dwell-channel --test race -- --nocapture --test-threads=1
	$(CARGO) build --release --locked -p dwell-exerciser
	./target/release/dwell-exerciser --surface all --minutes $(EXERCISE_MINUTES) --log target/exerciser-log.md
	@for tool in fsx pjdfstest; do [ -x target/tools/bin/$$tool ] || $(CARGO) install --quiet --locked --root target/tools $$tool; done
	./tests/exerciser/suites --kernel own --kernel 6.1 --kernel 7.2
	@./scripts/packages $(NEEDS_PACKAGES) $(NEEDS_PYTHON) $(NEEDS_DEBIANS)
	./vm/systemd
	./tests/packages/run
	DWELL_SWEEP_POINTS=1000 ./crates/dwell-python/test --ray
	@$(MAKE) --no-print-directory aarch64
	@$(MAKE) --no-print-directory msrv

install: deps
	$(CARGO) build --release --locked $(PROGRAMS) -p dwell-capi
	@$(MAKE) --no-print-directory install-files

# What was built already, by cargo in FROM.
install-files:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' LIBDIR='$(LIBDIR)' ./scripts/install $(FROM)

deb: deps
	@./scripts/packages $(NEEDS_PACKAGES)
	@./scripts/package deb

tarball: deps
	@./scripts/packages $(NEEDS_PACKAGES)
	@./scripts/package tarball

wheel: deps
	@./scripts/packages $(NEEDS_PYTHON)
	$(CARGO) build --release --locked $(PROGRAMS)
	@./crates/dwell-python/wheel

wheel-test: deps
	@./scripts/packages $(NEEDS_PYTHON)
	$(CARGO) build --locked -p dwell-cli
	DWELL_SWEEP_POINTS=1000 ./crates/dwell-python/test --ray

fio-engine: deps
	@./fio/build || [ $$? = 77 ]

sqlite-vfs:
	@./sqlite/build || [ $$? = 77 ]

fuzz: deps
	@./fuzz/run $(FUZZ_SECONDS)

lint:
	$(CARGO) fmt --all --check
	$(CARGO) fmt --all --check --manifest-path peers/Cargo.toml
	$(CARGO) fmt --check --manifest-path fuzz/Cargo.toml
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy $(PEERS) --all-targets --locked -- -D warnings
	$(CARGO) clippy -p dwell -p dwell-tokio --locked -- -D warnings
	@! $(CARGO) tree -p dwell-tokio -e normal --locked | grep -E ' (serde|serde_json|toml|glob) v' || \
	  { echo "make: a program that uses dwell would link these; put them behind a feature" >&2; exit 1; }
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet
	# Every crate that is to be published can be packaged.
	$(CARGO) publish --workspace --dry-run --no-verify --allow-dirty --locked --quiet --registry crates-io
	./scripts/check-sources
	@./scripts/packages $(NEEDS_BPF)
	./scripts/bpf --check

# The oldest compiler that Cargo.toml promises, beside the one that is installed.
msrv: deps
	rustup toolchain install $(MSRV) --profile minimal
	cargo +$(MSRV) check --workspace --locked --target-dir target/msrv

# Licences and origins of everything that is linked. Building the tool takes minutes, so make test-long looks.
deny:
	@command -v cargo-deny >/dev/null || [ -x target/tools/bin/cargo-deny ] || \
	  $(CARGO) install --quiet --debug --locked --root target/tools cargo-deny
	@PATH="$$PATH:$(CURDIR)/target/tools/bin" cargo-deny --log-level warn check licenses bans sources

figure: build trace-tool
	@./scripts/packages $(NEEDS_TEST) $(NEEDS_WORKLOADS) $(NEEDS_OLTP)
	@[ -n "$(ID)" ] || { echo "make: say which one, as in make figure ID=S4 (./target/release/dwell lab figure --list)" >&2; exit 1; }
	@./target/release/dwell lab figure $(ID) $(if $(CASE),--case '$(CASE)') $(if $(TIME),--max-time $(TIME))

figures: build trace-tool
	@./scripts/packages $(NEEDS_TEST) $(NEEDS_WORKLOADS) $(NEEDS_OLTP)
	@./target/release/dwell lab figure --all --docs docs --docs .
	@if [ -f target/figures/M1.svg ]; then cp target/figures/M1.svg docs/m1.svg; fi
