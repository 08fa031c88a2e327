# What a developer and the CI run. `check` only reads, `fmt` mends.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | column -t -s "$$(printf '\t')"

check: ## Format, lints, docs, the purity of the core; only reads
	cargo fmt --all --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --no-default-features --lib --bins -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items
	./tests/purity.sh
	./packaging/versions.sh --check

fmt: ## Format
	cargo fmt --all

test: ## Every suite, on a real stack that is started and stopped (STACK=off: without it)
	./tests/run.sh

soak: ## What takes minutes: the agent and an engine of its own killed at every stage, larger bounds of the model, many more cases of the properties; prints the figures
	./tests/soak.sh

fuzz: ## Every fuzz target for 60 s, two at a time; needs a nightly toolchain
	./tests/fuzz.sh

coverage: ## Which lines of src/fsm and src/effects a test runs: at least 95 %
	./tests/coverage.sh

mutants: ## Every mutant of src/fsm is found by a test or explained in tests/mutants/survivors.txt
	./tests/mutants/run.sh

test-install: ## The package and what installs it, on boxes with systemd and the real stack (minutes)
	./tests/install/run.sh

package: ## The Debian package, in target/package/deb
	./packaging/build.sh

release: ## Package and checksums in target/release-files; the version needs a dated entry in CHANGELOG.md
	./packaging/release.sh

demo: ## The whole loop on embedded stand-ins
	cargo run --locked -- demo

bench: ## Against bare Python, bare Compose, and the machine by itself; prints ratios
	./benches/run.sh

stack-up: ## Start the real stack and leave it running
	./tests/stack/install.sh
	./tests/stack/up.sh

stack-down: ## Stop it
	./tests/stack/down.sh

incident: ## A field recording becomes a fixture: make incident FROM=recording.jsonl NAME=2026-09-what-happened
	./fixtures/incidents/add.sh "$(FROM)" "$(NAME)"

.PHONY: help check fmt test soak fuzz coverage mutants test-install package release demo bench stack-up stack-down incident
