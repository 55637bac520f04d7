# What people and CI run. `make help` names the targets; docs/install.md says more.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: demo install-c wheel quick test test-all check check-aarch64 fix bench bench-doors bench-rdma bench-scale book pictures reference fuzz fuzz-keep lab package clean help

# make demo
TRANSPORT ?= shm
SERVERS ?= 2
WORKERS ?= 2
TRAIN ?=
# make install-c
PREFIX ?= /usr/local
# make bench
JSON ?=
PEER ?=
BENCH ?=
export PEER
# make bench-doors
DOORS ?=
# make bench-rdma
RDMA ?=
# make bench-scale
SCALE ?=
# make fuzz: seconds for each target, and which (all unless named)
SECONDS := 60
TARGETS ?=
# make pictures: which (all unless named)
PICTURES ?=
# make lab
SEEDS ?= 5000
FIRST ?= 0
# make test: one suite only
SUITE ?=

BUILT := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(BUILT)/release
TOOLS := $(or $(GRADWIRE_TOOLS),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gradwire/tools)
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(TOOLS)/bin
# Only the programs: what benchmarks and tests need is not built for the demo; nor are `gradwire top` and `gradwire chaos`, which packages have.
# install-c and wheel select these packages too: features are then those of the demo's build, whose crates are used again.
PROGRAMS := -p gradwire-cli -p gradwire-scheduler -p gradwire-server -p gradwire-trainer
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The runner alone is built without the roles, so that it can report a role that does not compile.
RUNNER := cargo build --quiet --locked -p gradwire-tests --no-default-features --bin suites && \
    exec $(BUILT)/debug/suites

## demo      build, start a cluster here, train on handwritten digits [TRANSPORT=shm|tcp|verbs SERVERS=2 WORKERS=2 TRAIN='--epochs 5']
demo:
	@mkdir -p $(BUILT)/demo
ifeq ($(TRANSPORT),verbs)
	@tests/guest/demo.sh $(SERVERS) $(WORKERS) $(BUILT)/demo/loss.svg $(TRAIN) | tee $(BUILT)/demo/log
else
	@deploy/bootstrap.sh demo
	@cargo build --release --locked --no-default-features --bins $(PROGRAMS)
	@$(RELEASE)/gradwire launch --servers $(SERVERS) --workers $(WORKERS) --transport $(TRANSPORT) -- \
	    $(RELEASE)/gradwire-worker train --plot $(BUILT)/demo/loss.svg $(TRAIN) | tee $(BUILT)/demo/log
endif
	@echo "loss curve: $(BUILT)/demo/loss.svg"
	@sed -n 's/^.*\(test_accuracy=[^ ]* weights_sha256=[^ ]* transport=[^ ]*\( codec=.*\)\{0,1\}\).*$$/\1/p' $(BUILT)/demo/log | \
	    tail -n 1 | grep . || { echo "demo: the trainer did not say how well it learnt" >&2; exit 1; }

## install-c headers for C, C++ and ps-lite, libraries, files for pkg-config and CMake [PREFIX=/usr/local DESTDIR= LIBDIR=lib]
install-c:
	cargo build --release --locked --no-default-features --bins --lib $(PROGRAMS) -p gradwire-c
	bindings/c/install.sh $(RELEASE)/libgradwire.a $(PREFIX) $(VERSION)

## wheel     the Python wheel with the programs in it, in target/wheel: pip install target/wheel/*.whl
wheel:
	@deploy/bootstrap.sh python
	cargo build --release --locked --bins --lib $(PROGRAMS) -p gradwire-python
	rm -rf $(BUILT)/wheel
	bindings/python/wheel.sh $(RELEASE) $(BUILT)/wheel

## quick     the inner loop: suites that need no root, no emulated machine and no cluster software
quick:
	@deploy/bootstrap.sh demo
	@$(RUNNER) --quick

## test      the fast suites of tests/suites.toml: what CI runs [SUITE=NAME for one]
test:
	@deploy/bootstrap.sh demo
	@$(RUNNER) $(if $(SUITE),--only $(SUITE))

## test-all  the slow suites too
test-all:
	@deploy/bootstrap.sh demo
	@$(RUNNER) --all

## check     formatting, lints, documentation, licences, house rules; writes nothing
check:
	@deploy/bootstrap.sh check
	cargo fmt --all --check
	cd fuzz && cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cd fuzz && RUSTC_BOOTSTRAP=1 cargo check --locked --quiet
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --document-private-items --locked --quiet
	cargo deny --locked check licenses bans sources
	cargo test --quiet --locked -p gradwire-tests --no-default-features --test tidy

## check-aarch64  lints for 64-bit ARM, and unit tests there, on an emulated processor
check-aarch64:
	tests/aarch64.sh

## fix       what can be corrected mechanically
fix:
	@deploy/bootstrap.sh fix
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	cargo fmt --all
	cd fuzz && cargo fmt

## bench     Gradwire beside this machine's best copy and other ways to do the same [JSON=FILE PEER=CMD BENCH='--help']
bench:
	@deploy/bootstrap.sh bench
	@cargo build --profile measured --locked --bins $(PROGRAMS) -p gradwire-benches
	@$(BUILT)/measured/gradwire-bench $(if $(JSON),--json $(JSON)) $(if $(PEER),--peer "$$PEER") $(BENCH)

## bench-doors  ps-lite's API, torch beside gloo, torch between two hosts with a slow link [DOORS='--only torch']
bench-doors:
	@deploy/bootstrap.sh torch
	@cargo build --release --locked --bins --lib $(PROGRAMS) -p gradwire-python
	@$(MAKE) --no-print-directory install-c PREFIX=$(abspath $(BUILT))/doors/c > /dev/null
	@rm -rf $(BUILT)/doors/wheel && bindings/python/wheel.sh --bare $(RELEASE) $(BUILT)/doors/wheel > /dev/null
	@test -x $(BUILT)/doors/venv/bin/python || /usr/bin/python3 -m venv --system-site-packages $(BUILT)/doors/venv
	@$(BUILT)/doors/venv/bin/pip install --quiet --force-reinstall --no-deps $(BUILT)/doors/wheel/*.whl
	@benches/doors.py --programs $(RELEASE) --library $(BUILT)/doors/c/lib/libgradwire.so --python $(BUILT)/doors/venv/bin/python $(DOORS)

## bench-rdma  Gradwire over an RDMA device beside perftest, in a guest with a software one [JSON=FILE RDMA='--quick']
bench-rdma:
	@benches/rdma.sh '$(JSON)' $(RDMA)

## bench-scale  the engines of 1,000 workers and 100 servers, simulated, after measuring what the model needs [JSON=FILE SCALE='--help']
bench-scale:
	@deploy/bootstrap.sh bench
	@cargo build --release --locked -p gradwire-scheduler -p gradwire-server -p gradwire-benches
	@$(RELEASE)/gradwire-bench scale $(if $(JSON),--json $(JSON)) $(SCALE)

## book      the book of docs/ as HTML, with mdbook, which is built once where it is missing
book:
	@deploy/bootstrap.sh book
	@mdbook build docs
	@echo "book: $(BUILT)/book/index.html"

## pictures  the book's pictures from a real run here: gradwire top, a timeline, the dashboard, the live page, the chart of benchmarks
pictures:
	@deploy/bootstrap.sh demo
	@cargo build --release --locked --bins $(PROGRAMS)
	@benches/chart.py > docs/figures/benchmarks.svg
	@docs/figures/make.py $(RELEASE) $(PICTURES)

## reference the book's reference page of Python, from docstrings
reference:
	@bindings/reference.py

## fuzz      every decoder and engine under libFuzzer, from the inputs in fuzz/seeds [SECONDS=60 each, TARGETS='batch_decode …']
fuzz:
	@deploy/bootstrap.sh fuzz
	@export RUSTC_BOOTSTRAP=1; mkdir -p fuzz/target; \
	for target in $(or $(TARGETS),$$(cargo fuzz list)); do \
	    echo "== $$target, $(SECONDS) s, log in fuzz/target/$$target.log"; \
	    fuzz/seeds.sh unpack $$target || exit 1; \
	    cargo fuzz run $$target -- -max_total_time=$(SECONDS) -print_final_stats=1 -rss_limit_mb=2048 \
	        > fuzz/target/$$target.log 2>&1 || { tail -n 60 fuzz/target/$$target.log; exit 1; }; \
	    grep -E 'DONE|^Done|^stat::' fuzz/target/$$target.log; \
	done

## fuzz-keep what runs of it have found goes to fuzz/seeds: to be committed, and where the next run starts [TARGETS='…']
fuzz-keep:
	@deploy/bootstrap.sh fuzz
	@export RUSTC_BOOTSTRAP=1; for target in $(or $(TARGETS),$$(cargo fuzz list)); do fuzz/seeds.sh keep $$target || exit 1; done

## lab       simulated clusters in which everything goes wrong, that many seeds of it [SEEDS=5000 FIRST=0]
lab:
	@GRADWIRE_FIRST_SEED=$(FIRST) GRADWIRE_SEEDS=$(SEEDS) cargo test --config profile.dev.opt-level=2 --locked -p gradwire-tests --test sim -- --ignored --exact lab::thousands_of_seeds lab::thousands_of_restored_jobs lab::thousands_of_divided_networks --nocapture

## package   wheel, .deb and .rpm, tarball, parts list and checksums, in target/package
package:
	@deploy/bootstrap.sh package
	cargo build --release --locked --bins --lib $(PROGRAMS) -p gradwire-c -p gradwire-python
	rm -rf $(BUILT)/package
	bindings/python/wheel.sh $(RELEASE) $(BUILT)/package
	deploy/package/build.sh $(RELEASE) $(BUILT)/package
	@ls -l $(BUILT)/package

## clean     remove what was built (tools in ~/.cache/gradwire stay)
clean:
	cargo clean --quiet
	rm -rf fuzz/target fuzz/artifacts

## help      this list
help:
	@sed -n 's/^## /make /p' $(firstword $(MAKEFILE_LIST))
