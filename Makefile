# The one command surface. `make help` lists it; .ci/run calls nothing else.

SHELL := /bin/bash
CARGO ?= cargo

# mold links the workspace in a third of the time. It is used where it is installed and missed nowhere.
ifneq ($(shell command -v mold 2>/dev/null),)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS ?= -C link-arg=-fuse-ld=mold
endif

TARGET := $(or $(CARGO_TARGET_DIR),target)

.DEFAULT_GOAL := help
.PHONY: help demo chaos test unit sim sim-broken clients conformance behaviours programs fuzz fmt fmt-check lint generate manifests manifests-check monitoring-check build release up down e2e failovers scale bench bench-storage need clean made-up

help: ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

need:
	@tools/need-rust

demo: release ## Three brokers here, a publisher and a consumer at work, the primary killed several times, and the ledger
	target/release/understudy demo $(DEMO)

CHAOS ?= --minutes 10

chaos: release ## The same with any broker killed or stopped at random times, for minutes, by a seed: CHAOS="--minutes 1 --seed 7"
	target/release/understudy demo --chaos $(CHAOS)

test: unit clients ## All tests that need no cluster

unit: need made-up ## The Rust tests
	$(CARGO) test --workspace --locked --quiet

made-up: need ## The broker as a build of a made-up next version, for the tests of upgrades
	@# As a part of the whole workspace, so that what others made is compiled once.
	$(CARGO) build --locked --quiet --workspace --bin understudy-broker --features understudy-broker/made-up-version
	mkdir -p $(TARGET)/made-up && cp $(TARGET)/debug/understudy-broker $(TARGET)/made-up/
SEEDS ?= 0..2000
SIM = $(CARGO) run --profile sim --locked --quiet -p understudy-sim --features variants --

sim: need ## The cluster in simulated time: SEEDS=FROM..TO; exits with 1 if a rule is broken, and says how to replay it
	$(SIM) $(SEEDS) $(SIM_ARGS)

sim-broken: need ## Each rule broken on purpose: the simulator has to notice
	$(SIM) 0..1000 --broken

clients: release ## pika, aio-pika, kombu, amqplib and amqp091-go, before and after a failover
	e2e/clients/run

conformance: release ## Suites that others wrote, against ours and RabbitMQ: CONFORMANCE="--suite kombu --only ours --seed 7"
	e2e/conformance/run $(CONFORMANCE)

programs: release ## Celery, Spring and others while their primary is killed: PROGRAMS="--verbose celery", or --oracle for RabbitMQ
	e2e/programs/run $(PROGRAMS)

FUZZ ?= 1000000

fuzz: need ## So many inputs for whatever reads from a wire or a disk, guided by coverage: FUZZ=100000
	@tools/need g++
	broker/fuzz/run $(FUZZ)

behaviours: release ## Our own tests of what an AMQP broker does, on ours and on RabbitMQ: BEHAVIOURS="--only ours x_death"
	e2e/behaviours/run $(BEHAVIOURS)

fmt: need ## Format
	$(CARGO) fmt --all
	$(CARGO) fmt --manifest-path broker/fuzz/Cargo.toml

fmt-check: need ## Fails where the format is not the house's
	$(CARGO) fmt --all --check
	$(CARGO) fmt --manifest-path broker/fuzz/Cargo.toml --check

lint: need ## Clippy; warnings are errors in CI
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- $(if $(CI),-D warnings,)

generate: need ## The CRD's YAML, docs/reference.md and what the Helm chart has of both, from the Rust types
	UPDATE_EXPECT=1 $(CARGO) test --locked --quiet -p understudy-crds
	UPDATE_EXPECT=1 $(CARGO) test --locked --quiet -p understudy-operator --test manifests the_chart

# Assigned first, so that a tool that is not to be had ends it.
MANIFESTS = export KUSTOMIZE HELM; KUSTOMIZE=$$(tools/need-go-tool kustomize) && HELM=$$(tools/need-go-tool helm) && \
	$(CARGO) test --locked --quiet -p understudy-operator --test manifests -- --include-ignored

manifests: generate ## manifests/install.yaml, from the kustomize base
	@export UPDATE_EXPECT=1; $(MANIFESTS) the_one_file

manifests-check: need ## kustomize, the one file and the Helm chart render the same objects, and Kubernetes knows each field
	@$(MANIFESTS)

monitoring-check: release ## Metrics, alerts and dashboard, by promtool, against brokers that run here
	manifests/monitoring/check target/release/understudy

build: need ## A debug build
	$(CARGO) build --workspace --locked

release: need ## A release build of the commands: understudy, understudy-broker, understudy-bench
	$(CARGO) build --release --locked --quiet -p understudy -p understudy-broker -p understudy-bench

up: need ## A Kubernetes with Understudy on it: kind where a Docker engine runs, else a cluster of network namespaces
	e2e/up

down: ## Takes that away again
	e2e/down

e2e: need ## The cluster tests, on such a Kubernetes of their own
	e2e/run

failovers: need ## Twenty failovers of each kind on such a Kubernetes, most of an hour: FAILOVERS="twenty::nodes_freeze"
	UNDERSTUDY_E2E_LIMIT=5400 e2e/run $(or $(FAILOVERS),twenty::)

scale: need ## What one operator costs that looks after 200 clusters, on faked nodes: SCALE="--clusters 50 --silent"
	e2e/scale/run $(SCALE)

bench: release ## Ours beside RabbitMQ's quorum queues on this machine, in one run, as ratios
	target/release/understudy-bench compare $(BENCH)

bench-storage: release ## The log alone: its limit, restart, memory, disk, and what checkpoints cost
	for what in limit restart backlog old steady; do target/release/understudy-bench $$what || exit; done

clean: ## Build results
	$(CARGO) clean
