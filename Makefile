# `make help` lists what there is. Versions of tools are pinned here and nowhere else.
GO      ?= go
MODULES := proto pkg services/publisher services/reader services/streamer services/gateway cmd tests
# Not in the workspace: the requirements of Helm and Kubernetes would choose versions for everything else.
ALONE   := tests/deploy tests/dashboards tests/telemetry tools/dashpicture
ROLES   := publisher reader streamer gateway
# Every package of every module, as patterns that work in the workspace.
ALL     := $(MODULES:%=./%/...)

BUF           := $(GO) run github.com/bufbuild/buf/cmd/buf@v1.75.0
GOLANGCI_LINT := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
# Without programs that only some machines have.
ACTIONLINT    := $(GO) run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 -shellcheck= -pyflakes=

.DEFAULT_GOAL := help
.PHONY: help run build test check lint generate generated helm standalone tidy fuzz bench chaos attack clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## Start the whole backend on this machine, the gateway on 127.0.0.1:5050
	@bin/devstack

build: ## Build every program into bin/
	@mkdir -p bin
	@$(GO) build -o bin/ ./cmd/devstack ./cmd/xmtpctl $(foreach r,$(ROLES),./services/$(r)/cmd/$(r))

test: ## Run every test; installs PostgreSQL, a C compiler, nginx and Chromium if they are missing
	@tools/need postgresql gcc nginx chromium node curl prometheus libfaketime
	@$(GO) test -race -timeout 25m work
	@for m in $(ALONE); do (cd $$m && GOWORK=off $(GO) test -timeout 20m ./... ) || exit 1; done

# A build of Kubernetes takes a quarter of an hour on two cores the first time: nothing else waits for it.
KUBERNETES := $(shell sed -n 's/^\tk8s.io\/kubernetes v//p' tests/k8s/go.mod)
KUBEVERSION := k8s.io/component-base/version
.PHONY: test-k8s
test-k8s: ## Install the chart into a Kubernetes control plane that is built from its Go modules
	@cd tests/k8s && GOWORK=off $(GO) vet . && GOWORK=off $(GO) test -count 1 -timeout 30m -ldflags \
	  "-X $(KUBEVERSION).gitVersion=v$(KUBERNETES) -X $(KUBEVERSION).gitMajor=$(word 1,$(subst ., ,$(KUBERNETES))) -X $(KUBEVERSION).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES)))" .

check: lint generated helm standalone ## Lint, check that generated files are fresh, build each module on its own

lint:
	@echo "lint"
	@$(GOLANGCI_LINT) run --allow-parallel-runners $(ALL)
	@for m in $(ALONE); do (cd $$m && GOWORK=off $(GOLANGCI_LINT) run ./... ) || exit 1; done
	@$(ACTIONLINT)

generate: ## Generate the Go code of proto/ and the lists of variables, metrics and requirements in docs/
	@cd proto && $(BUF) lint && $(BUF) generate
	@$(GO) run ./cmd/configdoc -write
	@$(GO) run ./cmd/metricsdoc
	@$(GO) run ./cmd/requirementsdoc -write

generated:
	@echo "generated code and documents are fresh"
	@$(GO) run ./cmd/configdoc -check
	@$(GO) run ./cmd/metricsdoc -check
	@$(GO) run ./cmd/requirementsdoc -check
	@$(GO) run ./cmd/requirementsdoc -papers
	@$(GO) test -count 1 ./tests/repository # what it reads is outside of its module, which the cache of results does not notice
	@tools/fresh

helm:
	@echo "the chart lints, renders with every values file and decodes strictly"
	@cd tests/deploy && GOWORK=off $(GO) test .

standalone:
	@echo "each module builds on its own"
	@for m in $(MODULES) $(ALONE); do (cd $$m && GOWORK=off $(GO) build -o /dev/null ./... && GOWORK=off $(GO) vet ./... ) || exit 1; done

tidy: ## Tidy every module
	@$(GO) work sync
	@for m in $(MODULES) $(ALONE) tests/k8s; do (cd $$m && GOWORK=off $(GO) mod tidy) || exit 1; done

bench: build ## Measure the backend against pgbench, pgx and grpc-go; BENCH holds flags
	@$(GO) build -o bin/bench ./cmd/bench/suite
	@bin/bench $(BENCH)

chaos: ## Break every part at random for 30 minutes; CHAOS holds flags, such as "-seed 1 -duration 5m"
	@tools/need postgresql
	@$(GO) run ./tests/robustness/chaos -report docs/chaos.md $(CHAOS)

attack: ## Attack the roles under the chart's memory limits; ATTACK holds flags, such as "-attack rapid-reset"
	@tools/need postgresql nginx
	@$(GO) test -count 1 -timeout 2h -v ./tests/robustness/siege -long 20s -document $(CURDIR)/docs/attacks.md $(ATTACK)

FUZZTIME ?= 30s
fuzz: ## Fuzz every parser, and every RPC through the gateway, for FUZZTIME each
	@tools/need postgresql gcc
	@tools/fuzz $(FUZZTIME)

# Where PostgreSQL's user cannot enter this folder, what is in .data is only a link to the data (pkg/pglocal/dir.go).
clean: ## Remove what was built and the dev stack's data
	@test ! -d .data || find .data -maxdepth 1 -lname '/var/lib/xmtp-dev/*' -exec readlink {} \; | xargs -r rm -rf
	@rm -rf bin .data
