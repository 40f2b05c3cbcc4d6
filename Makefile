# SPDX-License-Identifier: MIT OR Apache-2.0
# make demo    installs what is needed, builds, runs the main job, prints the report's path
# make test    everything: lint, unit and property tests, the engine on real devices, real NVMe in a VM
# make trace-tool  builds the Valgrind tool with which `dwell trace record` records, part of make build where valgrind is installed
# make peers   builds the other runtimes that `dwell bench io --policies block,peer:NAME` measures beside it
# make figure ID=S4   measures one figure of the papers; `make figures` all, and rewrites the tables in docs/

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

CARGO ?= cargo
ID ?=
REPORT ?= target/report
PEERS := --manifest-path peers/Cargo.toml --target-dir target/peers

# Debian packages by the program or file that shows they are there.
NEEDS := qemu-system-x86_64:qemu-system-x86 busybox:busybox-static dmsetup:dmsetup mkfs.ext4:e2fsprogs losetup:mount cc:gcc fio:fio valgrind:valgrind

.PHONY: demo test lint figure figures peers build deps deny trace-tool

deps:
	@missing=; for need in $(NEEDS); do \
	  PATH="$$PATH:/usr/sbin:/sbin" command -v "$${need%%:*}" >/dev/null || missing="$$missing $${need##*:}"; done; \
	command -v $(CARGO) >/dev/null || { echo "make: a Rust toolchain is needed (rustup, or Debian's cargo 1.89 or newer)" >&2; exit 1; }; \
	if [ -n "$$missing" ]; then \
	  if ! command -v apt-get >/dev/null; then echo "make: not Debian; please install:$$missing" >&2; \
	  else sudo=; [ "$$(id -u)" = 0 ] || sudo="sudo -n"; echo "installing:$$missing"; \
	    { $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >/dev/null; } \
	    || echo "make: could not install$$missing; tests that need them will be skipped" >&2; fi; fi

build: deps trace-tool
	$(CARGO) build --release --locked

# A program of its own, because it links Valgrind and has its licence.
trace-tool: deps
	@if [ "$$(uname -m)" = x86_64 ] && command -v valgrind cc >/dev/null && [ -f /usr/include/valgrind/pub_tool_tooliface.h ]; \
	then $(MAKE) --no-print-directory -C valgrind OUT=$(CURDIR)/target/valgrind; \
	else echo "make: no valgrind with its headers, or no cc, or not x86-64: dwell trace record will not work" >&2; fi

peers: deps
	$(CARGO) build --release --locked $(PEERS)

demo: build
	@./target/release/dwell bench io --report $(REPORT)

test: deps trace-tool lint
	./scripts/test

lint: deny
	$(CARGO) fmt --all --check
	$(CARGO) fmt --all --check --manifest-path peers/Cargo.toml
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy $(PEERS) --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --quiet
	./scripts/check-sources

# Licences and origins of everything that is linked. Built once, without optimising.
deny:
	@command -v cargo-deny >/dev/null || [ -x target/tools/bin/cargo-deny ] || \
	  $(CARGO) install --quiet --debug --locked --root target/tools cargo-deny
	@PATH="$$PATH:$(CURDIR)/target/tools/bin" cargo-deny --log-level warn check licenses bans sources

figure: build
	@[ -n "$(ID)" ] || { echo "make: say which one, as in make figure ID=S4 (./target/release/dwell figure --list)" >&2; exit 1; }
	@./target/release/dwell figure $(ID)

figures: build
	@./target/release/dwell figure --all --docs docs --docs .
	@cp target/figures/M1.svg docs/m1.svg
