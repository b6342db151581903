# Targets a user calls: up, down, test, build. The rest is for developers: see CONTRIBUTING.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

GO      ?= go
TAGS    := grpcnotrace
COMMIT  := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
MODULE  := github.com/skiff-k8s/skiff
KUBERNETES := v1.37.2
# Cached builds that are not part of the tree: upstream's suite and the images of its tests.
CACHE   ?= $(CURDIR)/.cache

# Everything but the small C program and the libcontainer launcher is pure Go.
export CGO_ENABLED := 0
export GOFLAGS := -buildvcs=false

SKIFF_LDFLAGS   := -s -w -X $(MODULE)/version.Commit=$(COMMIT)
KUBECTL_LDFLAGS := -s -w -X k8s.io/component-base/version.gitVersion=$(KUBERNETES) \
	-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37 \
	-X k8s.io/component-base/version.gitTreeState=clean

include containers/build.mk

.PHONY: build
build: bin/skiff bin/kubectl ## build bin/skiff and bin/kubectl

# Go decides itself what is out of date.
.PHONY: bin/skiff bin/kubectl
bin/skiff: embedded
	@echo "building bin/skiff"
	@$(GO) build -tags $(TAGS) -ldflags '$(SKIFF_LDFLAGS)' -o $@ ./cmd/skiff
bin/kubectl:
	@echo "building bin/kubectl"
	@$(GO) build -ldflags '$(KUBECTL_LDFLAGS)' -o $@ ./cmd/kubectl

.PHONY: host
host: ## install what the host lacks to build and test (Debian, root)
	@.ci/host

.PHONY: up
up: host build ## build and start a one-node cluster on this host
	@bin/skiff up --detach

.PHONY: down
down: ## end it and remove all it made but its data (down --purge removes that too)
	@bin/skiff down

.PHONY: vet
vet:
	@echo "go vet"
	@$(GO) vet -tags $(TAGS) ./...

.PHONY: lint
lint: vet ## go vet, gofmt and staticcheck (minutes)
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	@cd tools/lint && $(GO) build -o $(CACHE)/staticcheck honnef.co/go/tools/cmd/staticcheck
	@$(CACHE)/staticcheck -tags $(TAGS) ./...

.PHONY: format
format:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "run gofmt -w on:"; gofmt -l $$(git ls-files '*.go'); exit 1; }

.PHONY: unit
unit: embedded ## all tests of the packages, those that need root included
	@echo "go test ./..."
	@$(GO) test -tags $(TAGS) $(shell $(GO) list ./... | grep -v /test/e2e)

.PHONY: e2e
e2e: build ## real clusters on this host: the deployment flow, crashes, clean-up
	@echo "go test ./test/e2e"
	@SKIFF_BIN=$(CURDIR)/bin/skiff KUBECTL_BIN=$(CURDIR)/bin/kubectl $(GO) test -count=1 -timeout 20m -v -tags $(TAGS) ./test/e2e

.PHONY: conformance-first-light
conformance-first-light: build ## the Conformance tests named in test/upstream/first-light.txt
	@$(MAKE) --no-print-directory -C test/upstream CACHE=$(CACHE) tools
	@test/upstream/run first-light $(CACHE)

.PHONY: test
test: host format vet unit e2e conformance-first-light ## everything; needs root

.PHONY: bench
bench: build ## figures of this build: boot, idle, pod start
	@SKIFF_BIN=$(CURDIR)/bin/skiff KUBECTL_BIN=$(CURDIR)/bin/kubectl $(GO) test -count=1 -timeout 30m -tags $(TAGS) -run '^$$' -bench . -benchtime 1x ./test/e2e

.PHONY: clean
clean:
	rm -rf bin .cache

.PHONY: help
help:
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 28
