# Tradewind: everything a newcomer types. `make help` lists it.

SHELL := /bin/bash
CARGO ?= cargo
# rustup puts cargo here; a shell opened before the installation does not know yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)

TARGET_DIR := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
TRADEWIND := $(TARGET_DIR)/release/tradewind

.DEFAULT_GOAL := help
.PHONY: help setup setup-test setup-web setup-test-web setup-docs setup-lint setup-release setup-bench build web test-web test-web-made build-papers demo test test-long test-lab lint docs reference release image test-image test-packages test-deploy test-machines bench smoke fuzz fuzz-api clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: ## install what building and running needs: Debian packages, the Rust toolchain
	@scripts/setup.sh build

setup-test: setup
	@scripts/setup.sh test

setup-web:
	@scripts/setup.sh web

setup-docs: setup
	@scripts/setup.sh docs

setup-lint: setup
	@scripts/setup.sh lint

setup-release: setup
	@scripts/setup.sh release

setup-bench: setup
	@scripts/setup.sh bench

build: setup ## build the binary `tradewind`, with the dashboard where npm is there
	@if [ -z "$$(command -v npm)" ] || ! $(MAKE) --no-print-directory web/dist/index.html; then \
	  echo "note: built without the dashboard's page; \`make web\` builds it"; fi
	$(CARGO) build --locked --release -p tradewind
	@echo "built $(TRADEWIND)"

# The dashboard's files, which the binary holds.
WEB_SOURCES := $(shell find web/src web/index.html web/*.ts web/*.js web/*.json -type f 2>/dev/null)
web/dist/index.html: web/node_modules/.package-lock.json $(WEB_SOURCES)
	cd web && npm run --silent build

web/node_modules/.package-lock.json: web/package-lock.json
	cd web && npm ci
	@touch $@

web: setup-web ## build the dashboard, after a check of its types and its unit tests
	cd web && npm ci && npm run check && npm test && npm run build

# Where it leaves pictures of the pages; those of the docs are in docs/how-to.
SCREENSHOTS ?= $(TARGET_DIR)
# The build of `smoke` and `test-lab`, so that nothing is built twice.
test-web: setup-test-web web/dist/index.html build-papers ## the dashboard in Chromium, over a large overlay that is made up and a real one in the lab: pass, fail or invalid
	cd web && npm run --silent e2e -- --verdict $(abspath $(TARGET_DIR))/test-web.verdict $(abspath $(TRADEWIND)) $(abspath $(SCREENSHOTS))

test-web-made: setup-test-web web/dist/index.html ## the first half of `test-web`, without the program
	cd web && npm run --silent e2e

setup-test-web:
	@scripts/setup.sh test-web

build-papers: setup ## build `tradewind-papers` (the papers' experiments) and `tradewind`, which it starts
	$(CARGO) build --locked --release -p tradewind -p tradewind-papers
	@echo "built $(TRADEWIND) and $(TRADEWIND)-papers"

demo: build ## the overlay's loop on an emulated WAN: measure, plan, deploy, carry, compare
	$(TRADEWIND) demo $(DEMO_FLAGS)

test: setup-test ## all tests that need no privileges and assert no times
	@$(CARGO) run --locked --quiet -p xtask -- test
	$(CARGO) test --locked --workspace --doc
	@if [ -n "$${TRADEWIND_RTT_CSV:-}" ]; then \
	  $(CARGO) test --locked --workspace --test rtt_error --test routing_measured -- --ignored; \
	else echo "SKIPPED: rtt_error and routing_measured need measured RTTs: set TRADEWIND_RTT_CSV (docs/explanation/rtt-model.md)"; fi

test-long: setup ## what `make test` samples, at length: the heuristics on 10,000 random problems of 1 to 200 flows, the exact solvers on 500, the control plane under 1,000 seeds, a controller cut off for ten minutes
	$(CARGO) run --locked --release --quiet --example heuristics_hold
	$(CARGO) run --locked --release --quiet -p tradewind-control --example control_holds
	$(CARGO) test --locked --release --workspace --test exact
	TRADEWIND_TEST_PARTITION_S=600 $(CARGO) test --locked --release --workspace --test controlled_faults

test-lab: build-papers ## figures on real kernel TCP in the emulated WAN: pass, fail or invalid
	@$(CARGO) run --locked --quiet -p xtask -- test-lab $(TRADEWIND) $(TARGET_DIR)/test-lab.verdict $(STEPS)

lint: setup-lint ## formatting, clippy, layers, licences, sources, docs
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --locked -p tradewind-plan --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items --quiet
	$(CARGO) run --locked --quiet -p xtask -- layers
	@$(BUILD_BOOK)
	$(CARGO) deny --locked --log-level error check licenses bans sources

# mdBook says little; a word of warning is a failure, too.
BOOK := $(abspath $(TARGET_DIR)/book)
BUILD_BOOK = said=$$(mdbook build docs --dest-dir $(BOOK) 2>&1) && ! grep -E '^ *(WARN|ERROR)' <<<"$$said" || { echo "$$said"; exit 1; }

docs: setup-docs ## the book, from docs/: its links checked, its pages in TARGET/book
	$(CARGO) run --locked --quiet -p xtask -- layers
	@$(BUILD_BOOK)
	@echo "built $(BOOK)/index.html"

reference: build ## the generated pages of docs/reference, from the commands and the types of files
	$(TRADEWIND) generate reference docs/reference

# The one that this machine can run comes first.
OWN := $(shell uname -m)
RELEASE_TARGETS ?= $(OWN)-unknown-linux-musl $(if $(filter aarch64,$(OWN)),x86_64,aarch64)-unknown-linux-musl
release: setup-release web ## what to ship, in TARGET/release-files: for x86-64 and arm64 the static binary, its bill of materials, Debian package; checksums, sizes
	@scripts/release.sh $(TARGET_DIR) $(RELEASE_TARGETS)

image: ## a container image of what `make release` left, beside it: the binary alone
	@scripts/setup.sh image
	@scripts/image.sh $(TARGET_DIR)/release-files

test-image: ## what `make image` left: a relay and a gateway on a read-only root, by a numeric user
	@scripts/setup.sh test-image
	@scripts/test-image.sh $(TARGET_DIR)/release-files

test-packages: ## what `make release` left: installed, upgraded, removed and purged in clean Debian roots, and two hosts made of it
	@scripts/setup.sh test-packages
	@scripts/test-packages.sh $(TARGET_DIR)/release-files

test-machines: build ## `tradewind machines` by Terraform against moto, which plays AWS: made, lost, changed, destroyed
	@scripts/test-machines.sh $(TRADEWIND)

test-deploy: ## what `make release` left, by `tradewind deploy`: eleven hosts with sshd, upgraded one after the other, removed
	@scripts/setup.sh test-deploy
	@scripts/test-deploy.sh $(TARGET_DIR)/release-files

bench: setup-bench build ## side by side with HAProxy, nginx and plain TCP; capacity of the lab; times of the planner and of jump-start
	$(CARGO) run --locked --release --quiet -p tradewind-bench-relay -- --tradewind $(TRADEWIND) $(BENCH_FLAGS)
	$(CARGO) run --locked --release --quiet -p tradewind-wan --example core_rate
	$(CARGO) run --locked --release --quiet -p tradewind-lab --example capacity
	$(CARGO) run --locked --release --quiet -p tradewind-fec --example fec_speed
	$(CARGO) run --locked --release --quiet -p tradewind-bench-packets
	$(CARGO) run --locked --release --quiet -p tradewind-jumpstart-daemon --example jump_costs
	$(CARGO) run --locked --release --quiet --example planner_times

smoke: build-papers ## every bench, example and experiment that the docs quote, in its shortest form: that they run, no figure
	@$(CARGO) run --locked --quiet -p xtask -- smoke $(TRADEWIND)

fuzz-api: build ## attack the controller's API by its OpenAPI document (schemathesis, two minutes)
	@scripts/fuzz-api.sh $(TRADEWIND) $(TARGET_DIR)/fuzz-api

FUZZ_SECONDS ?= 600
FUZZ_TARGETS := topology hop_header hop_reply join stripe_frames grant_token revocation_list plan_problem flow_log rtt_table packet_message packet_session packet_services packet_stored_message jumpstart_control jumpstart_config
fuzz: setup ## fuzz every parser of foreign input and the packet machines, FUZZ_SECONDS each (nightly Rust); finds go to target/fuzz-found
	@scripts/setup.sh fuzz
	@for target in $(FUZZ_TARGETS); do \
	  found=$(TARGET_DIR)/fuzz-found/$$target; mkdir -p $$found; \
	  $(CARGO) +nightly fuzz run $$target $$found fuzz/corpus/$$target -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

clean: ## remove what was built
	$(CARGO) clean
	rm -rf web/node_modules web/dist/assets web/dist/index.html
