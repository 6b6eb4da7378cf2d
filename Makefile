# The commands of the repository. Each may be run at any time and again; each says what it does.
#
#   make up      everything: install, build, start the cluster, deploy, boot the demo VM
#   make test    the tests that every change must pass, scenarios with real guests included
#   make test-all  those, and what takes long by nature; its result is in bin/test-all.txt
#   make down    stop everything; nothing is left behind on the host
#   make lint    format, clippy with warnings as errors, the rules of the repository
#   make bench   one table of figures
#   make fuzz    each fuzz target for ten minutes; FUZZ_SECONDS=60 makes it one
#   make deps    install what is missing, nothing else
#   make build   bin/ferrovirt and bin/virtctl

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help deps build images up test test-all lint down purge bench fuzz ci

# Outside of the checkout, so that clones share what is built; never needed to be there.
export CARGO_TARGET_DIR ?= /var/cache/ferrovirt/target
export FERROVIRT_IMAGES ?= /var/cache/ferrovirt/images

# A mistyped target.
.DEFAULT:
	@echo "error: there is no target \"$@\": \`make\` lists what there is" >&2; exit 2

help:
	@sed -n 's/^#   //p' Makefile

deps:
	@scripts/deps.sh

# What users run is optimised; tests build everything else with the dev profile, and so the programs as well.
test test-all: export PROFILE = dev

build: deps
	@scripts/build.sh

images: build
	@bin/ferrovirt images build

up: images
	@bin/ferrovirt up
	@bin/ferrovirt demo

test: build
	@scripts/test.sh

test-all: build
	@scripts/test.sh all

lint:
	@scripts/lint.sh

down:
	@if [ -x bin/ferrovirt ]; then bin/ferrovirt down; else echo "nothing was built, so nothing runs"; fi

purge:
	@if [ -x bin/ferrovirt ]; then bin/ferrovirt down --purge; fi

bench: deps
	@scripts/bench.sh

fuzz: deps
	@scripts/fuzz.sh

ci:
	@.ci/run
