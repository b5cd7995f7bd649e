# `make test` is what CI runs (.ci/run). Steps go in order and stop at the first failure.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help run test bench bench-redis bench-admit bench-gateway flood soak fuzz instructions loom deny fmt \
	setup format clippy unit docs bench-check optional

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
HAVE_DENY := $(CARGO) deny --version >/dev/null 2>&1
HAVE_VALGRIND := command -v valgrind >/dev/null 2>&1
heading = @printf '\n== %s\n' "$(strip $(1))"

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## the gateway in front of a small API of its own
	$(CARGO) run --release

test: setup format clippy unit docs loom bench-check optional ## everything that has to pass
	@skipped=; $(HAVE_DENY) || skipped="$$skipped dependencies"; $(HAVE_VALGRIND) || skipped="$$skipped instructions"; \
	printf '\nmake test: passed%s\n' "$${skipped:+, skipped:$$skipped}"

bench: ## measure speed (own workspace, in bench/)
	$(CARGO) run --release --manifest-path bench/Cargo.toml

bench-redis: ## measure the Redis store against scripts of one limit each
	$(CARGO) run --release --manifest-path bench/Cargo.toml --bin redis

bench-admit: ## measure what a policy costs beside the bare limiters
	$(CARGO) run --release --manifest-path bench/Cargo.toml --bin admit

bench-gateway: ## measure the gateway beside nginx, HAProxy and Envoy
	@scripts/bench-setup.sh
	$(CARGO) build --release
	$(CARGO) run --manifest-path bench/Cargo.toml --bin gateway -- --tollgate $(TARGET)/release/tollgate

flood: ## what a flood of random keys costs others; writes docs/flood.tsv and docs/flood.svg (minutes)
	$(CARGO) run --release -p tollgate --example flood -- 1 3 10 30 100 > docs/flood.tsv
	python3 scripts/plot_flood.py docs/flood.tsv docs/flood-floors.tsv > docs/flood.svg

SOAK_SECONDS ?= 600
soak: setup ## minutes of mixed traffic on 2,000 connections, with reloads and outages; SOAK_SECONDS=60 for less
	$(CARGO) build --release
	SOAK_BINARY=$(abspath $(TARGET))/release/tollgate SOAK_SECONDS=$(SOAK_SECONDS) \
		$(CARGO) test -p tollgate-daemon --all-features --test tests soak:: -- --ignored --nocapture

FUZZ_SECONDS ?= 60
fuzz: ## run the fuzzers one after another (nightly); FUZZ_SECONDS=600 for longer
	scripts/fuzz.sh $(FUZZ_SECONDS)

instructions: ## instructions per decision against docs/instructions.tsv
	$(call heading, instructions per decision)
	scripts/instructions.sh check

loom: ## every interleaving of the lock-free table
	$(call heading, loom)
	RUSTFLAGS="--cfg tollgate_loom" $(CARGO) test --release -p tollgate --lib --target-dir $(TARGET)/loom loom_

deny: ## licences, bans and sources of dependencies
	$(call heading, dependencies)
	$(CARGO) deny check licenses bans sources

fmt: ## format everything
	$(CARGO) fmt --all
	$(CARGO) fmt --all --manifest-path bench/Cargo.toml
	$(CARGO) fmt --all --manifest-path fuzz/Cargo.toml

# The other steps of `make test`.

setup:
	@scripts/setup.sh

format:
	$(call heading, format)
	$(CARGO) fmt --all --check
	$(CARGO) fmt --all --manifest-path bench/Cargo.toml --check
	$(CARGO) fmt --all --manifest-path fuzz/Cargo.toml --check

clippy:
	$(call heading, clippy)
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	$(CARGO) clippy -p tollgate-core -p tollgate --lib --no-default-features -- -D warnings

unit:
	$(call heading, tests)
	$(CARGO) nextest run --workspace --all-features

docs:
	$(call heading, documentation)
	$(CARGO) test --doc --workspace --all-features
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --all-features

bench-check:
	$(call heading, benchmarks compile)
	$(CARGO) check --manifest-path bench/Cargo.toml --target-dir $(TARGET)

# Their tools cannot be had everywhere (scripts/setup.sh tries): these steps run where the
# tool is, and say so where it is not.
optional:
	@if $(HAVE_DENY); then $(MAKE) --no-print-directory deny; \
	else printf '\n== dependencies: skipped, cargo-deny is not installed\n'; fi
	@if $(HAVE_VALGRIND); then $(MAKE) --no-print-directory instructions; \
	else printf '\n== instructions per decision: skipped, valgrind is not installed\n'; fi
