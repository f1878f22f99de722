# gpumem. "make help" lists what there is to make.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VERSION  ?= v0.2.0
FUZZTIME ?= 5s
KEEP     ?=
DURATION ?= 10m
PODS     ?= 500
SEED     ?=
SEEDS    ?= 10000
MUTANTS  ?= 200
RELEASE  ?=
BIN      := bin

# Where Go code of ours is, each a module of its own.
MODULES := . test test/cluster/components/kueue test/scheduler cmd/gpumem-scheduler

# Packages of the module test that test-unit runs. test-sim runs ./sim, and test-cluster all
# others.
UNIT_TESTS := ./bench ./page ./policies ./sim/mutants

# go-nvml compiles NVIDIA's deprecated prototypes; their warnings are not ours.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Look at it

.PHONY: demo
demo: ## Show gpumem on a real cluster on this machine (KEEP=1 leaves it up); needs root
	@mkdir -p $(BIN)
	@echo "==> Build the demo"
	@cd test && go build -o ../$(BIN)/gpumem-demo ./cmd/gpumem-demo
	@$(BIN)/gpumem-demo $(if $(KEEP),--keep)

.PHONY: demo-down
demo-down: ## End a demo that was left up
	@cd test && go run ./cmd/gpumem-demo --down

##@ Build

.PHONY: build
build: ## Build the binaries into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/ ./cmd/gpumem-extender ./cmd/gpumem-sim ./cmd/kubectl-inspect-gpumem
	cd cmd/gpumem-scheduler && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(CURDIR)/$(BIN)/ .
	CGO_ENABLED=1 go build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/ ./cmd/gpumem-device-plugin

.PHONY: release
release: ## Make a release in dist/: binaries, images, chart, SBOMs, licences, krew manifest, checksums (RELEASE=-all: for all platforms, or not at all)
	cd test && go run ./cmd/gpumem-release -version $(VERSION) $(RELEASE)

.PHONY: clean
clean: ## Remove what was built in the checkout (not the cache of the test cluster)
	rm -rf $(BIN) dist

##@ Before you send a change

.PHONY: presubmit
presubmit: verify lint test test-install ## What CI runs: verify, lint, test and test-install

.PHONY: verify
verify: vet $(BIN)/helm ## See that code is formatted and vetted, modules are tidy, and the chart's renders are those of their sources
	@for dir in $$(find . -name go.mod -printf '%h\n' | sort); do \
		cd $$dir; for file in go.mod $$(ls kube-*.mod 2>/dev/null); do \
			go mod tidy -modfile=$$file -diff || { echo "$$dir/$$file: run make update" >&2; exit 1; }; \
		done; cd $(CURDIR); \
	done
	go test -run TestWhatIsMadeOfTheTable ./pkg/kube/api
	HELM=$(CURDIR)/$(BIN)/helm charts/gpumem/tests/golden.sh
	@echo "verified: what is generated is that of its sources"

.PHONY: lint
lint: ## Run actionlint, and golangci-lint by the rules of .golangci.yml (LINTFLAGS="--concurrency 1")
	@mkdir -p $(BIN)
	@cd test/lint && go build -o ../../$(BIN)/ tool
	@cd test && go build -o ../$(BIN)/ tool
	@echo "actionlint"; $(BIN)/actionlint .github/workflows/*.yml
	@for dir in $(MODULES); do echo "golangci-lint in $$dir"; cd $$dir; $(CURDIR)/$(BIN)/golangci-lint run $(LINTFLAGS); cd $(CURDIR); done

.PHONY: test
test: test-unit test-sim test-fuzz test-cluster ## Run all tests (those on a real cluster need root)

.PHONY: update
update: $(BIN)/helm ## Write again what is made of something else: formatting, go.sum, golden files, tables
	gofmt -w cmd pkg test
	@for dir in $$(find . -name go.mod -printf '%h\n' | sort); do cd $$dir; for file in go.mod $$(ls kube-*.mod 2>/dev/null); do go mod tidy -modfile=$$file; done; cd $(CURDIR); done
	go test ./pkg/kube/api ./pkg/report/printers ./pkg/replay ./pkg/cli ./pkg/cli/overview ./cmd/gpumem-sim -update
	cd test && go test . ./fakenvml -run 'TestTableOfValues|TestStubsAreCurrent|TestNamesThatPeopleUse' -update
	cd test && go test ./gpu -run TestResultsAreCurrent -update
	HELM=$(CURDIR)/$(BIN)/helm charts/gpumem/tests/golden.sh --update

# The Helm of the test cluster.
.PHONY: $(BIN)/helm
$(BIN)/helm:
	@mkdir -p $(BIN)
	@cd test/cluster/components && CGO_ENABLED=0 go build -ldflags "-s -w" -o $(CURDIR)/$(BIN)/ helm.sh/helm/v3/cmd/helm

##@ Tests, the fastest first

.PHONY: vet
vet: ## Check formatting and vet
	@test -z "$$(gofmt -l cmd pkg test | tee /dev/stderr)"
	@for dir in $(MODULES); do echo "go vet in $$dir"; cd $$dir; go vet ./...; cd $(CURDIR); done

# -count=1 where tests read or build what is outside of their module: go would show an
# earlier result for it.
.PHONY: vulnerabilities
vulnerabilities: ## Look for known vulnerabilities in what is called of our dependencies; needs vuln.go.dev
	@mkdir -p $(BIN)
	@cd test/lint && go build -o ../../$(BIN)/ golang.org/x/vuln/cmd/govulncheck
	@for dir in $(MODULES); do echo "govulncheck in $$dir"; cd $$dir; $(CURDIR)/$(BIN)/govulncheck ./...; cd $(CURDIR); done

.PHONY: test-unit
test-unit: chromium ## Run the tests of the packages
	go test -race -shuffle=on ./...
	cd test/cluster/components/kueue && go test -count=1 ./...
	cd test && go test -count=1 $(UNIT_TESTS)
	cd test/scheduler && go test -count=1 -parallel 16 ./...

.PHONY: test-versions
test-versions: ## Vet and test gpumem-scheduler with each Kubernetes that it is released for, and not with go.mod's alone
	for kube in 1.35 1.37; do \
		(cd cmd/gpumem-scheduler && go vet -modfile=kube-$$kube.mod -tags kube$$kube ./...); \
		(cd test/scheduler && go vet -modfile=kube-$$kube.mod -tags kube$$kube ./... && go test -modfile=kube-$$kube.mod -tags kube$$kube -count=1 -parallel 16 ./...); \
	done

.PHONY: test-sim
test-sim: ## Simulate a cluster under faults: some seeds, some of them with the race detector, and the traces
	cd test/sim && go test -count=1 -timeout 20m -seeds 500
	cd test/sim && go test -count=1 -race -timeout 20m -run 'TestSim$$' -seeds 40 -first 100000

.PHONY: test-fuzz
test-fuzz: ## Fuzz every target for FUZZTIME each
	test/fuzz.sh $(FUZZTIME)

.PHONY: test-cluster
test-cluster: chromium ## Run the tests on real clusters, and of what they are made
	@if [ "$$(id -u)" != 0 ]; then echo "Not root: test/cluster, test/e2e and whatever else needs a real cluster are left out."; fi
	cd test && go test -count=1 -race -timeout 45m -p 1 $$(go list ./... | grep -vxF "$$(go list ./release ./sim $(UNIT_TESTS))")
	cd test && go test -count=1 ./release # one goroutine that compresses images: the race detector makes minutes of it

.PHONY: test-install
test-install: ## Install gpumem in place of gpushare, for a scheduler that is there and with cert-manager, and have claims limited at every level (ten minutes; needs root)
	cd test && go test -count=1 -race -timeout 40m -run 'TheClustersOwnScheduler|InPlaceOfGPUShare|FromCertManager|LimitsByClaims' ./e2e -long

# A browser is no reason to fail: without one, the tests that need it say so and
# are left out.
.PHONY: chromium
chromium: ## Install Chromium, which the tests of the page need, where it is missing; needs root and apt-get
	@if command -v chromium chromium-browser google-chrome >/dev/null; then exit; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "Not root, and no Chromium on this machine: the tests in a browser are left out."; exit; fi; \
	echo "installing packages: chromium"; export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null || \
		echo "Chromium could not be installed: the tests in a browser are left out."

##@ Longer tests

.PHONY: test-long
test-long: test-versions test-install ## Test gpumem-scheduler of each version, have kube-scheduler bind each pod that fits in 5 s, at 20 places in each size of cluster, upgrade in every order, ask all that the kit for GPUs asks, kill the driver of claims, and repeat e2e and chaos with the extender (two hours, on an idle machine; e2e and chaos need root)
	cd test/scheduler && go test -count=1 -timeout 2h -parallel 4 -v -seeds 20 -patience 5s ./...
	cd test && go test -count=1 -timeout 40m -v -run TestUpgradeFromTheLastRelease ./e2e -long
	cd test && go test -count=1 -v -run TestTheKit ./gpu -long
	cd test && go test -count=1 -v -timeout 60m ./claims -long
	cd test && GPUMEM_SCHEDULER_MODE=extender go test -count=1 -timeout 40m -p 1 ./e2e ./chaos

.PHONY: sim
sim: ## Simulate a cluster under faults: SEEDS seeds from SEED on
	@mkdir -p $(BIN)
	@cd test && go test -c -o ../$(BIN)/sim.test ./sim
	@$(BIN)/sim.test -test.run 'TestSim$$' -test.timeout 0 -seeds $(SEEDS) $(if $(SEED),-first $(SEED))

.PHONY: sim-mutants
sim-mutants: ## Put faults into gpumem, one at a time, and see whether a test or the simulation finds each: known ones, and MUTANTS of the core (SEED= draws others)
	@cd test/sim && go build -o ../../$(BIN)/sim-mutants ./mutants && ../../$(BIN)/sim-mutants -generated $(MUTANTS) $(if $(SEED),-seed $(SEED))

.PHONY: chaos
chaos: $(BIN)/gpumem-chaos ## Kill parts of a real cluster for DURATION while pods come and go (SEED= repeats the choices); needs root
	@$(BIN)/gpumem-chaos -duration $(DURATION) $(if $(SEED),-seed $(SEED))

.PHONY: failover
failover: $(BIN)/gpumem-chaos ## Kill the leading scheduler of a real cluster in a burst of pods, freeze the next in another, thaw it in a third (PODS in all); needs root
	@$(BIN)/gpumem-chaos -pods $(PODS) $(if $(SEED),-seed $(SEED)) failover

.PHONY: attack
attack: ## Attack gpumem on a real cluster as a tenant, and as who has taken a node; needs root
	@mkdir -p $(BIN)
	@cd test && go build -o ../$(BIN)/gpumem-attack ./cmd/gpumem-attack
	@$(BIN)/gpumem-attack

.PHONY: $(BIN)/gpumem-chaos
$(BIN)/gpumem-chaos:
	@mkdir -p $(BIN)
	@cd test && go build -o ../$(BIN)/gpumem-chaos ./cmd/gpumem-chaos

##@ Measure

# Which parts of the benchmarks to run. The last two need root.
SECTIONS ?= handlers stress memory node throughput kubelet

.PHONY: bench
bench: ## Measure what gpumem costs beside what there is without it (SECTIONS="handlers ...")
	@mkdir -p $(BIN)
	@cd test && go build -o ../$(BIN)/gpumem-bench ./bench
	@cd test && go build -o ../$(BIN)/ ./cmd/gpumem-throughput ./cmd/gpumem-podstart
	@inside="$(filter-out throughput kubelet,$(SECTIONS))"; \
	if [ -n "$$inside" ]; then $(BIN)/gpumem-bench -json $(BIN)/bench.json $$inside; fi
ifneq ($(filter throughput,$(SECTIONS)),)
	@$(BIN)/gpumem-throughput -idle $(CURDIR)/$(BIN)/gpumem-bench -json $(BIN)/throughput.json
endif
ifneq ($(filter kubelet,$(SECTIONS)),)
	@$(BIN)/gpumem-podstart -json $(BIN)/podstart.json
endif

.PHONY: bench-packing
bench-packing: ## Compare placement policies on the traces in the folder TRACES (the node list and the pod lists of cluster-trace-gpu-v2023)
	@ls $(TRACES)/openb_node_list_gpu_node.csv $(TRACES)/openb_pod_list_*.csv >/dev/null || \
		{ echo "bench-packing: TRACES=$(TRACES) lacks openb_node_list_gpu_node.csv or any openb_pod_list_*.csv" >&2; exit 1; }
	@if [ -f $(TRACES)/openb_published_allocation.csv ]; then \
		TRACES=$(abspath $(TRACES)) go test -count=1 -run TestPublishedCurves ./pkg/replay; \
	else echo "bench-packing: no openb_published_allocation.csv in $(TRACES): the published curves are not compared"; fi
	TRACES=$(abspath $(TRACES)) go test -count=1 -timeout 180m -v -run 'TestPacking$(if $(WORLD),/$(WORLD))' ./pkg/replay
