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

# Version 2, for tests of the kubelet on it; 1.6 is Debian's.
.PHONY: containerd
containerd: ## containerd 2 from its module, built once into .cache/twins (minutes when cold)
	@$(MAKE) --no-print-directory -C test/upstream/twins CACHE=$(CACHE) $(CACHE)/twins/containerd $(CACHE)/twins/containerd-shim-runc-v2

.PHONY: unit
unit: embedded containerd ## all tests of the packages, those that need root included
	@echo "go test ./..."
	@$(GO) test -timeout 30m -tags $(TAGS) $(shell $(GO) list ./... | grep -v /test/e2e)

.PHONY: e2e
e2e: build containerd ## real clusters on this host: the deployment flow, crashes, clean-up
	@echo "go test ./test/e2e"
	@SKIFF_BIN=$(CURDIR)/bin/skiff KUBECTL_BIN=$(CURDIR)/bin/kubectl $(GO) test -count=1 -timeout 40m -v -tags $(TAGS) ./test/e2e

# Under cgroup v2, in a virtual machine: what touches control groups, and whole clusters.
GUEST_PACKAGES := host/cgroup host/mount containers containers/cgroup containers/monitor kubelet proxy test/e2e
.PHONY: guest
guest: build ## the runtime's tests and a cluster on a Debian kernel under QEMU, cgroup v2 only (needs qemu-system-x86)
	@rm -rf $(CACHE)/guest/tests && mkdir -p $(CACHE)/guest/tests
	@$(GO) build -o $(CACHE)/guest/run ./test/guest
	@$(GO) build -o $(CACHE)/guest/init ./test/guest/init
	@for p in $(GUEST_PACKAGES); do $(GO) test -c -vet=off -tags $(TAGS) -o $(CACHE)/guest/tests/$${p//\//_}.test ./$$p; done
	@$(CACHE)/guest/run -cache $(CACHE)/guest -init $(CACHE)/guest/init -tests $(CACHE)/guest/tests

.PHONY: ipvs-guest
ipvs-guest: ## of make guest the proxy's mode ipvs alone, which needs a kernel with IPVS
	@$(MAKE) --no-print-directory guest GUEST_PACKAGES=proxy

# What a run of upstream's suite needs, and where its results are kept.
CONFORMANCE = $(CACHE)/conformance run -skiff bin/skiff -kubectl bin/kubectl -cache $(CACHE)
RESULTS     = -results test/upstream/results/conformance.xml -causes test/upstream/results/causes.txt -page docs/conformance.md
CHANGED     = $(shell git diff --quiet HEAD -- . ':!test' ':!docs' 2>/dev/null || echo ' with changes')
PARALLEL   ?= 4
NODES      ?= 2

.PHONY: conformance-tools
conformance-tools: build
	@$(MAKE) --no-print-directory -C test/upstream CACHE=$(CACHE) tools

.PHONY: conformance
conformance: conformance-tools ## the Conformance tests on a fresh cluster, all or FOCUS=regex or SIG=name, PARALLEL=n at a time, on NODES=n nodes; docs/conformance.md
	@$(CONFORMANCE) -out $(CACHE)/results/conformance -sig '$(SIG)' -focus '$(value FOCUS)' -parallel '$(PARALLEL)' -nodes '$(NODES)' $(RESULTS) -commit '$(COMMIT)$(CHANGED)'

.PHONY: conformance-page
conformance-page: ## compute docs/conformance.md again from the results kept
	@cd test/upstream && $(GO) run ./conformance page $(subst test/upstream/,,$(subst docs/,../../docs/,$(RESULTS)))

.PHONY: conformance-first-light
conformance-first-light: conformance-tools ## the Conformance tests that test/upstream/first-light.txt and ci.txt name
	@$(MAKE) --no-print-directory -C test/upstream CACHE=$(CACHE) check
	@$(CONFORMANCE) -out $(CACHE)/results/first-light -parallel '$(PARALLEL)' -list test/upstream/first-light.txt -list test/upstream/ci.txt

.PHONY: critest
critest: build ## critest on the container runtime alone, all or FOCUS=regex, PARALLEL=n at a time; docs/critest.md (root)
	@$(MAKE) --no-print-directory -C test/upstream/critest CACHE=$(CACHE) check tools
	@$(CACHE)/critest run -skiff bin/skiff -cache $(CACHE) -out $(CACHE)/results/critest -focus '$(value FOCUS)' -parallel '$(PARALLEL)' -commit '$(COMMIT)$(CHANGED)' \
		-results test/upstream/results/critest.xml -causes test/upstream/results/critest-causes.txt -page docs/critest.md

.PHONY: test
test: ## everything, with the time of each step; needs root
	@for step in host format build vet unit e2e conformance-first-light; do \
		begin=$$SECONDS; $(MAKE) --no-print-directory $$step; echo "-- $$step: $$((SECONDS - begin)) s"; \
	done

.PHONY: twins
twins: ## upstream's components, etcd and containerd, built once into .cache/twins (an hour when cold)
	@$(MAKE) --no-print-directory -C test/upstream/twins CACHE=$(CACHE)
	@$(MAKE) --no-print-directory -C test/upstream/kine CACHE=$(CACHE) $(CACHE)/kine
	@cp -u $(CACHE)/kine $(CACHE)/twins/kine

.PHONY: swap
swap: conformance-tools twins ## clusters of upstream's and skiff's components: all rows or ROW=n,m; docs/interop.md (root)
	@cd test/upstream && $(GO) build -o $(CACHE)/swaprows ./swap
	@$(MAKE) --no-print-directory -C test/upstream/kinds CACHE=$(CACHE) build
	@code=0; $(CACHE)/swaprows run -row '$(ROW)' -cache $(CACHE) -skiff bin/skiff -kubectl bin/kubectl \
		-results test/upstream/results -lists test/upstream/swap -commit '$(COMMIT)$(CHANGED)' || code=$$?; \
	$(CACHE)/swaprows page -results test/upstream/results -out docs/interop.md; exit $$code

.PHONY: kubeadm
kubeadm: build ## kubeadm joins machines to a server of skiff's, with upstream's kubelet and with skiff's (root)
	@$(MAKE) --no-print-directory -C test/upstream/kubeadm CACHE=$(CACHE) $(CACHE)/twins/kubeadm
	@$(MAKE) --no-print-directory -C test/upstream/twins CACHE=$(CACHE) $(CACHE)/twins/kubelet
	@KUBEADM_BIN=$(CACHE)/twins/kubeadm KUBELET_BIN=$(CACHE)/twins/kubelet SKIFF_BIN=$(CURDIR)/bin/skiff KUBECTL_BIN=$(CURDIR)/bin/kubectl \
		$(GO) test -count=1 -timeout 15m -v -tags $(TAGS) -run TestKubeadmJoin ./test/e2e

.PHONY: kubeadm-guest
kubeadm-guest: build containerd ## kubeadm joins a Debian machine under QEMU, with systemd and upstream's kubelet, to a server of skiff's (root; needs qemu-system-x86, debootstrap)
	@$(MAKE) --no-print-directory -C test/upstream/kubeadm CACHE=$(CACHE) $(CACHE)/twins/kubeadm
	@$(MAKE) --no-print-directory -C test/upstream/twins CACHE=$(CACHE) $(CACHE)/twins/kubelet $(CACHE)/twins/kube-proxy
	@mkdir -p $(CACHE)/guest
	@$(GO) build -tags $(TAGS) -o $(CACHE)/guest/run ./test/guest
	@run="$(CACHE)/guest/run kubeadm -cache $(CACHE)/guest -out $(CACHE)/results/kubeadm-guest -skiff bin/skiff -kubectl bin/kubectl -twins $(CACHE)/twins"; \
	$$run -fetch && unshare -n -m --propagation private bash -c "ip link set lo up; mount --make-rshared /; exec $$run"

# Folder of upstream's binaries, made by make twins; what it lacks is reported as not run.
TWINS ?= $(CACHE)/twins
CASE ?=
ROUNDS ?= 2
.PHONY: record
record: ## run the scripts of test/api against upstream's API server and keep its answers (root; TWINS=dir)
	@test/upstream/record $(TWINS)

.PHONY: bench
bench: build ## skiff and upstream by turns, docs/benchmarks.md (root; under 40 minutes; CASE=regex for parts, ROUNDS=n, TWINS=dir)
	@$(GO) build -tags $(TAGS) -o $(CACHE)/bench ./test/bench
	@$(GO) build -tags $(TAGS) -o $(CACHE)/apibench ./test/bench/apibench
	@$(CACHE)/bench run --skiff bin/skiff --apibench $(CACHE)/apibench --twins '$(TWINS)' --case '$(value CASE)' --rounds $(ROUNDS) || { $(CACHE)/bench report; exit 1; }
	@$(CACHE)/bench report

# Hot paths, those of root included. The baseline is kept with the tree: see docs/benchmarks.md.
MICRO ?= .
MICRO_PACKAGES := ./api/core ./apiserver ./apiserver/apply ./apiserver/audit ./apiserver/authz ./apiserver/cacher ./store/etcd ./scheduler ./proxy ./proxy/nftables ./containers
MICRO_BASELINE := test/bench/results/baseline.txt
.PHONY: bench-micro
bench-micro: embedded ## Go benchmarks of hot paths against the stored baseline (MICRO=regex for some)
	@mkdir -p $(CACHE)
	@cd tools/benchstat && $(GO) build -o $(CACHE)/benchstat golang.org/x/perf/cmd/benchstat
	@$(GO) test -tags $(TAGS) -run '^$$' -bench '$(MICRO)' -benchmem -benchtime 200ms -count 6 -timeout 30m -p 1 $(MICRO_PACKAGES) > $(CACHE)/micro.txt || { cat $(CACHE)/micro.txt; exit 1; }
	@$(CACHE)/benchstat baseline=$(MICRO_BASELINE) now=$(CACHE)/micro.txt

.PHONY: bench-micro-baseline
bench-micro-baseline: embedded ## make the present figures the baseline
	@mkdir -p $(CACHE)
	@$(GO) test -tags $(TAGS) -run '^$$' -bench . -benchmem -benchtime 200ms -count 6 -timeout 30m -p 1 $(MICRO_PACKAGES) > $(CACHE)/micro.txt || { cat $(CACHE)/micro.txt; exit 1; }
	@grep -E '^(goos|goarch|pkg|cpu|Benchmark)' $(CACHE)/micro.txt > $(MICRO_BASELINE)

.PHONY: clean
clean:
	rm -rf bin .cache

.PHONY: help
help:
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 28
