# gpumem. "make help" lists what there is to make.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VERSION  ?= v0.2.0
FUZZTIME ?= 5s
KEEP     ?=
DURATION ?= 10m
PODS     ?=
SEED     ?=
SEEDS    ?= 10000
MUTANTS  ?= 200
PACKAGES ?= ./pkg/core/...
RELEASE  ?=
BIN      := bin

# Our Go modules. "make test-long" vets and tests another one, test/cluster/components/kueue.
MODULES := . test test/scheduler cmd/gpumem-scheduler

# Tests and checks need cgo for the race detector and for NVIDIA's library. The tags keep cgo out of the
# standard library, so that Go compiles each package once for tests, checks and the demo.
export GOFLAGS := $(strip $(shell go env GOFLAGS) -tags=netgo,osusergo)
# NVIDIA's header marks functions that go-nvml wraps as deprecated.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

# The packages of the module test with tests that start no cluster.
FAST_TESTS := . ./cluster/internal/... ./fakenvml ./gpu ./images ./load ./packing ./policies ./progress ./sim/mutants ./stack

# Packages whose code shares memory between goroutines.
SHARING = $(shell grep -rlE 'go func|errgroup\.|sync\.[A-Z]|atomic\.[A-Z]' --include=*.go pkg cmd | grep -v cmd/gpumem-scheduler | xargs -n 1 dirname | sort -u | sed 's|^|./|')

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Look at it

.PHONY: demo
demo: ## Show gpumem on a real cluster on this machine (KEEP=1 leaves it up); needs root
	@mkdir -p $(BIN)
	@echo "Compile the program that shows progress (a few seconds)"
	@cd test && CGO_ENABLED=0 go run ./cmd/demo-start -since $$(date +%s) ../$(BIN)/gpumem-demo $(if $(KEEP),--keep)

.PHONY: recording
recording: ## Take the pictures of the README from a demo; needs root, asciinema, npx and Chromium
	KEEP=1 $(MAKE) demo
	test/recording/record.sh docs/images; status=$$?; $(MAKE) demo-down; exit $$status

.PHONY: demo-down
demo-down: ## Remove a demo that KEEP=1 left up; needs root
	@cd test && CGO_ENABLED=0 go run ./cmd/gpumem-demo --down

##@ Build

.PHONY: build
build: ## Build the binaries into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/ ./cmd/gpumem-extender ./cmd/kubectl-inspect-gpumem
	cd cmd/gpumem-scheduler && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(CURDIR)/$(BIN)/ .
	CGO_ENABLED=1 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/ ./cmd/gpumem-device-plugin

.PHONY: release
release: ## Make a release in dist/: binaries, images, chart, SBOMs, licences, krew manifest, checksums (RELEASE=-all: for all platforms, or not at all)
	cd test && go run ./cmd/gpumem-release -version $(VERSION) $(RELEASE)

.PHONY: gpu-kit
gpu-kit: ## Write bin/gpu-kit.tar.xz, which measures gpumem on a machine with a GPU, without a network (test/gpu/README.md)
	test/gpu/run.sh -pack $(BIN)/gpu-kit.tar.xz

.PHONY: clean
clean: ## Remove what was built in the checkout (not the cache of the test cluster)
	rm -rf $(BIN) dist

##@ Before you send a change

.PHONY: quick
quick: ## Vet and test the changed packages and the packages that import them in about a minute with a warm cache (BASE=COMMIT: changed since then)
	@test/quick.sh

.PHONY: presubmit
presubmit: verify lint test test-install test-chaos ## Run what CI runs

.PHONY: verify
verify: vet $(BIN)/helm ## See that code is formatted and vetted, modules are tidy, and the chart's renders are those of their sources
	@for dir in $$(find . -name go.mod -printf '%h\n' | sort); do \
		cd $$dir; for file in go.mod $$(ls kube-*.mod 2>/dev/null); do \
			go mod tidy -modfile=$$file -diff || { echo "$$dir/$$file: run make update" >&2; exit 1; }; \
		done; cd $(CURDIR); \
	done
	go test -run 'TestWhatIsMadeOfTheTable|TestTheChartHasThePolicies|TestTableOfEvents|TestTheTableOfChecks|TestTableOfChecks|TestTableOfFeatures|TestTableOfExitCodes' ./pkg/kube/api ./pkg/kube/event ./pkg/kube/reasons ./pkg/report/doctor ./pkg/cli/cmdutil
	HELM=$(CURDIR)/$(BIN)/helm charts/gpumem/tests/golden.sh
	@echo "verified: what is generated is that of its sources"

# Files that follow the rules of test/lint/styles.
PROSE = $(wildcard docs/*.md) README.md test/gpu/README.md CONTRIBUTING.md test/README.md charts/gpumem/README.md charts/gpumem/values.yaml

.PHONY: lint
lint: ## Run actionlint, Vale, and golangci-lint by the rules of .golangci.yml (LINTFLAGS="--concurrency 1")
	@mkdir -p $(BIN)
	@cd test/lint && go build -o ../../$(BIN)/ tool
	@cd test && go build -o ../$(BIN)/ tool
	@echo "actionlint"; $(BIN)/actionlint .github/workflows/*.yml
	@echo "vale"; $(BIN)/vale $(PROSE); cd test/lint && go test ./...
	@for dir in $(MODULES); do echo "golangci-lint in $$dir"; cd $$dir; $(CURDIR)/$(BIN)/golangci-lint run $(LINTFLAGS); cd $(CURDIR); done

.PHONY: test
test: vet test-unit test-scheduler test-sim test-render test-e2e ## Run the tests that find most faults in about 15 minutes; without root, leave out those on a real cluster

.PHONY: update
update: $(BIN)/helm ## Regenerate formatting, go.sum, golden files and tables
	gofmt -w cmd pkg test
	@for dir in $$(find . -name go.mod -printf '%h\n' | sort); do cd $$dir; for file in go.mod $$(ls kube-*.mod 2>/dev/null); do go mod tidy -modfile=$$file; done; cd $(CURDIR); done
	go test -p 1 ./pkg/kube/api ./pkg/kube/event ./pkg/kube/reasons ./pkg/report/doctor ./pkg/report/printers ./pkg/cli ./pkg/cli/cmdutil -update
	cd test && go test . ./fakenvml -run 'TestTableOfValues|TestStubsAreCurrent|TestNamesThatPeopleUse' -update
	cd test && go test ./gpu -run TestResultsAreCurrent -update
	cd test && go test ./packing -run TestRecordedFigures -update
	HELM=$(CURDIR)/$(BIN)/helm charts/gpumem/tests/golden.sh --update

# The Helm of the test cluster.
.PHONY: $(BIN)/helm
$(BIN)/helm:
	@mkdir -p $(BIN)
	@cd test/cluster/components && CGO_ENABLED=0 go build -ldflags "-s -w" -o $(CURDIR)/$(BIN)/ helm.sh/helm/v3/cmd/helm

##@ Parts of make test, the fastest first

.PHONY: vet
vet: ## Check formatting and vet
	@test -z "$$(gofmt -l cmd pkg test | tee /dev/stderr)"
	@for dir in $(MODULES); do echo "go vet in $$dir"; cd $$dir; go vet ./...; cd $(CURDIR); done

.PHONY: test-render
test-render: $(BIN)/helm ## Compare the chart's default render with its golden file
	$(BIN)/helm template gpumem charts/gpumem --namespace gpumem-system --kube-version v1.36.3 \
		--values charts/gpumem/ci/default-values.yaml | diff -u charts/gpumem/tests/golden/default.yaml -

.PHONY: test-unit
test-unit: ## Run the unit tests, with the race detector where goroutines share memory
	go test $$(go list ./... | grep -vxF "$$(go list $(SHARING))")
	go test -race $(SHARING)
	cd test && go test -count=1 $(FAST_TESTS)

.PHONY: test-scheduler
test-scheduler: ## Run kube-scheduler in process, with the plugin and with the extender
	cd cmd/gpumem-scheduler && go test ./...
	cd test/scheduler && go test -count=1 -parallel 16 ./...

.PHONY: test-sim
test-sim: ## Simulate a cluster under faults: the traces and 150 seeds
	cd test/sim && go test -count=1 -timeout 20m -seeds 150

.PHONY: test-e2e
test-e2e: ## Run the core of the end-to-end tests on one real cluster; needs root
	cd test/e2e && go test -count=1 -timeout 20m # without a package, go prints the progress

##@ Longer tests

.PHONY: test-long
test-long: vet test-race test-render test-versions test-sim-long test-fuzz test-browser test-cluster ## Run all tests: nightly, and before a release (hours)
	cd test/cluster/components/kueue && go vet ./... && go test -count=1 ./...
	cd test/scheduler && go test -count=1 -timeout 2h -parallel 4 -v -seeds 20 -patience 5s ./...
	go test -count=1 -v -run TestDriverUpgrades ./cmd/gpumem-device-plugin -upgrades 50
	cd test && go test -count=1 -timeout 40m -v -run TestUpgradeFromTheLastRelease ./e2e -long
	cd test && go test -count=1 -v -timeout 60m ./claims -long
	cd test && GPUMEM_SCHEDULER_MODE=extender go test -count=1 -timeout 40m ./e2e -all
	cd test && GPUMEM_SCHEDULER_MODE=extender go test -count=1 -timeout 40m ./chaos

.PHONY: test-race
test-race: ## Run all unit tests with the race detector, in random order
	go test -race -shuffle=on ./...
	cd cmd/gpumem-scheduler && go test -race ./...
	cd test && go test -count=1 -race $(FAST_TESTS)

.PHONY: test-sim-long
test-sim-long: ## Simulate a cluster under faults: the traces and 500 seeds, and 40 with the race detector
	cd test/sim && go test -count=1 -timeout 20m -seeds 500
	cd test/sim && go test -count=1 -race -timeout 20m -run 'TestSim$$' -seeds 40 -first 100000

.PHONY: test-fuzz
test-fuzz: ## Fuzz every target for FUZZTIME each
	test/fuzz.sh $(FUZZTIME)

.PHONY: test-browser
test-browser: chromium ## Test the page in Chromium
	cd test && go test -count=1 ./page

.PHONY: test-versions
test-versions: ## Test gpumem-scheduler with Kubernetes 1.35 and 1.37 (test-scheduler has 1.36)
	for kube in 1.35 1.37; do \
		(cd cmd/gpumem-scheduler && go vet -modfile=kube-$$kube.mod -tags netgo,osusergo,kube$$kube ./...); \
		(cd test/scheduler && go vet -modfile=kube-$$kube.mod -tags netgo,osusergo,kube$$kube ./... && go test -modfile=kube-$$kube.mod -tags netgo,osusergo,kube$$kube -count=1 -parallel 16 ./...); \
	done

.PHONY: test-cluster
test-cluster: chromium ## Run every test that starts a real cluster, and the release tests; needs root
	@if [ "$$(id -u)" != 0 ]; then echo "Not root: tests on a real cluster are left out."; fi
	cd test && go test -count=1 -race -timeout 45m -p 1 $$(go list ./... | grep -vxF "$$(go list ./release ./sim ./page ./e2e $(FAST_TESTS))")
	cd test && go test -count=1 -race -timeout 45m ./e2e -all
	cd test && go test -count=1 ./release # without the race detector: it slows the compression of images

.PHONY: test-install
test-install: ## Upgrade from the last release, migrate a node from gpushare, and install gpumem in each of the other ways; needs root
	cd test/e2e && go test -count=1 -timeout 40m -run 'UpgradeFromTheLastRelease|TheClustersOwnScheduler|MigratingFromGPUShare|FromCertManager|LimitsByClaims'

.PHONY: test-chaos
test-chaos: ## Kill parts of a real cluster for one minute in each mode of the scheduler; needs root
	cd test/chaos && GPUMEM_SCHEDULER_MODE=plugin go test -count=1 -timeout 30m -run TestChaos -duration=1m
	cd test/chaos && GPUMEM_SCHEDULER_MODE=extender go test -count=1 -timeout 30m -run TestChaos -duration=1m

.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in what is called of our dependencies; needs vuln.go.dev
	@mkdir -p $(BIN)
	@cd test/lint && go build -o ../../$(BIN)/ golang.org/x/vuln/cmd/govulncheck
	@for dir in $(MODULES); do echo "govulncheck in $$dir"; cd $$dir; $(CURDIR)/$(BIN)/govulncheck ./...; cd $(CURDIR); done

# A browser is no reason to fail: without one, the tests that need it say so and
# are left out.
.PHONY: chromium
chromium: ## Install Chromium, which the tests of the page need, where it is missing; needs root and apt-get
	@if command -v chromium chromium-browser google-chrome >/dev/null; then exit; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "Not root, and no Chromium on this machine: the tests in a browser are left out."; exit; fi; \
	echo "installing packages: chromium"; export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null || \
		echo "Chromium could not be installed: the tests in a browser are left out."

.PHONY: sim
sim: ## Simulate a cluster under faults: SEEDS seeds from SEED on
	@mkdir -p $(BIN)
	@cd test && go test -c -o ../$(BIN)/sim.test ./sim
	@$(BIN)/sim.test -test.run 'TestSim$$' -test.timeout 0 -seeds $(SEEDS) $(if $(SEED),-first $(SEED))

.PHONY: sim-mutants
sim-mutants: ## Put faults into gpumem, one at a time, and see whether a test or the simulation finds each: known ones, and MUTANTS of PACKAGES (SEED= draws others, ONLY= is a regular expression)
	@cd test/sim && go build -o ../../$(BIN)/sim-mutants ./mutants && ../../$(BIN)/sim-mutants -generated $(MUTANTS) -packages "$(PACKAGES)" $(if $(SEED),-seed $(SEED)) $(if $(ONLY),-only "$(ONLY)")

.PHONY: chaos
chaos: ## Kill parts of a real cluster for DURATION while pods come and go (SEED= repeats the choices); needs root
	cd test/chaos && go test -count=1 -v -timeout 0 -run TestChaos -duration=$(DURATION) $(if $(SEED),-seed=$(SEED))

.PHONY: failover
failover: ## Kill the leading scheduler of a real cluster in a burst of pods, and stop the next one in another (PODS=500 in all); needs root
	cd test/chaos && go test -count=1 -v -timeout 0 -run TestFailover -pods=$(or $(PODS),500) $(if $(SEED),-seed=$(SEED))

.PHONY: attack
attack: ## Attack gpumem as a tenant and as root on a node: through its admission policies in process, and on a real cluster; needs root
	cd test && go test -count=1 -v -timeout 40m -run '^TestAttacks' ./policies ./e2e | grep -v '^=== '

##@ Measure

.PHONY: sizes
sizes: ## Print lines of Go by wing, of tests, of test tooling and of rendered chart files, and words of docs
	@test/sizes.sh

# Sections of make bench; empty: all. "bin/gpumem-load -h" explains them.
SECTIONS ?=
NODES    ?= 500,5000
ROUNDS   ?= 5
BEFORE   ?=

.PHONY: bench
bench: ## Measure what gpumem costs (SECTIONS="throughput kubelet", NODES, PODS, ROUNDS; BEFORE=PATH of another gpumem-scheduler); partly needs root
	@mkdir -p $(BIN)
	@cd test && go build -o ../$(BIN)/ ./cmd/gpumem-load
	@$(BIN)/gpumem-load -nodes $(NODES) -rounds $(ROUNDS) $(if $(PODS),-pods $(PODS)) $(if $(BEFORE),-before $(abspath $(BEFORE))) -json $(BIN)/bench.json $(SECTIONS)

.PHONY: bench-packing
bench-packing: ## Compare placement policies on the traces in the folder TRACES (the node list and the pod lists of cluster-trace-gpu-v2023), or on one (WORLD=gib-hetero)
	@test -n "$(TRACES)" || { echo "bench-packing: TRACES is empty, want a folder with the trace cluster-trace-gpu-v2023" >&2; exit 1; }
	cd test && TRACES=$(abspath $(TRACES)) go test -count=1 -run TestPublishedCurves ./packing
	cd test && TRACES=$(abspath $(TRACES)) go test -count=1 -timeout 180m -v -run 'TestTraces$(if $(WORLD),/$(WORLD))' ./packing
