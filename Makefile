# make build    the program, in bin/, also under its name as a kubectl plugin
# make unit     the tests that need no control plane, in seconds
# make story STORY=TestName
#               one story, or all that the pattern matches
# make test     every test, as CI runs them; at the end, where the time went
# make test KUBERNETES=1.33 KARPENTER=1.0
#               the same on other versions that have pins below e2e/controlplane/binaries:
#               Kubernetes 1.33, 1.34, 1.35 and 1.37, Karpenter 1.0 and 1.15; also for story,
#               demo, chaos, hostile, upgrade and accuracy
# make test RECORD=1
#               the same, and e2e/timing/ran.yaml says what ran and with which result, for the
#               table of deploy/docs/supported.md; for a commit without changes
# make lint     gofmt, vet, staticcheck, and actionlint for the workflows
# make demo     an interruption, start to end, live in this terminal
# make chaos SEED=7 MINUTES=30 MODE=imds
#               nodes are lost in random rounds while everything else fails, until an
#               invariant breaks; with ROUND=3 that round of the seed alone
# make sim SEED=7 ROUNDS=1000
#               the same in virtual time, in a simulated cluster: thousands of interrupted nodes in
#               minutes; ROUNDS=1 prints what happened in the round of that seed
# make reality SEED=7 ROUNDS=10
#               the same scenes on real control planes and in the simulator, for minutes each: what
#               becomes of pods and nodes must be the same
# make scale NODES=10000
#               the same for a cluster of so many nodes (10000 or 50000; both by default) that
#               loses a tenth of them at once, on control planes of several sizes
# make mutants PACKAGES=./drain/plan SEED=7 DRAW=20 MORE=./drain,./handler ROUNDS=1000
#               changes the source at random places, one at a time, and says which tests notice: the
#               package's own, those of MORE, or the rounds of the simulator; each takes up to minutes
# make fuzz MINUTES=5
#               each fuzz target for minutes; make unit runs their seeds
# make vulnerabilities
#               known vulnerabilities in what is called of the dependencies, by govulncheck
# make hostile SEED=7 MINUTES=30 SIZE=20
#               a tenant writes the largest and oddest objects that the API server takes, while
#               50 nodes are drained
# make upgrade MINUTES=3
#               from an earlier version to this one, back, and forth again, with drains under
#               way and both versions side by side for minutes each time
# make accuracy SEED=7 ROUNDS=6 CLUSTERS=10
#               forecasts of random clusters, beside what then happens, for minutes
# make bench    the figures of the documents, each beside the raw limit of this machine; it
#               draws the picture of the front page from them
# make image    a container image, with buildah or docker, for PLATFORM
# make chart    copy alerts and dashboard into the chart, and pack it into dist/
# make release VERSION=v1.2.3
#               binaries, chart, checksums and notes in DIST, as the release workflow makes them
# make help     this text
#
# test, story, demo, chaos, reality, hostile, upgrade, accuracy and bench build the control plane once
# (about 9 minutes on 2 cores), test, upgrade, chart and release also Helm (3 minutes), test and
# lint the linters (2 minutes), test and one story another handler (2 minutes), into the user's
# cache directory; from then on they start in seconds. Another version of Kubernetes takes about
# as long again; test also builds the oldest. unit builds none of them.
#
# test and story take no result from Go's cache: that does not see a change of the daemon
# where a test builds it by another process.
#
# PARALLEL is how many stories run at a time. They wait more than they work, but more than
# five at a time keep two slow processors so busy that deadlines pass.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
IMAGE   ?= spot-handler:$(VERSION)
PLATFORM ?= linux/amd64
DIST     ?= dist
PARALLEL ?= 5
HELM     := GOFLAGS=-trimpath go tool -modfile=e2e/chart/binaries/go.mod helm.sh/helm/v4/cmd/helm

export CGO_ENABLED = 0
export SPOT_HANDLER_E2E_KUBERNETES = $(KUBERNETES)
export SPOT_HANDLER_E2E_KARPENTER  = $(KARPENTER)

# Of the simulator's scenes in `make test`.
COMMITS_SEED := $(shell printf %d 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 1))

# The oldest versions, and the end-to-end tests that `make test` also runs on them, unless a
# version is given: a surge and a rehearsal, with replacements by Karpenter, refused evictions,
# and the chart's admission policies.
OLDEST         := env SPOT_HANDLER_E2E_KUBERNETES=1.33 SPOT_HANDLER_E2E_KARPENTER=1.0
OLDEST_STORIES := TestSurgeMovesAServiceWithoutADip TestBlockedPodsAreLeftAndReported \
                  TestTokensChangeOnlyWhatIsTheirs TestRehearsalEndsWithTheNodeInService
ALSO_OLDEST    := $(if $(KUBERNETES)$(KARPENTER),,$(OLDEST))

# The packages whose tests start a control plane, or run programs that are built or
# downloaded first.
NOT_UNIT := bench chaos chart controlplane forecast hostile image manual observe release sim/reality stories

.PHONY: build unit story test lint demo chaos sim reality scale mutants fuzz vulnerabilities hostile upgrade accuracy bench image chart release help

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

build:
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/spot-handler
	ln -sf spot-handler bin/kubectl-spot_handler

unit:
	go test $$(go list ./... | grep -vE '/e2e/($(subst $() ,|,$(NOT_UNIT)))$$')

story:
	@test -n '$(STORY)' || { echo 'make story STORY=TestName: one of' >&2; sed -n 's/^func \(Test[^(]*\).*/  \1/p' e2e/stories/*_test.go >&2; exit 2; }
	go run ./e2e/tool -build controlplane helm
	go test -count=1 -timeout 30m -parallel $(PARALLEL) -v -run '$(STORY)' ./e2e/stories

# The tests of e2e/stories have the processors first, and then the hostile tenant, on whose nodes pods
# have minutes to leave; all others take what they leave, two packages at a time, as most of them wait
# more than they work. Forecasts are compared with what happens when, and so is the simulator: they
# come last. The simulator plays two minutes of scenes that the commit draws: each commit plays others,
# and again the same ones if it is tested again.
test: lint
	go run ./e2e/tool -build controlplane helm handler
	$(if $(ALSO_OLDEST),$(OLDEST) go run ./e2e/tool -build controlplane)
	go run ./e2e/timing $(if $(RECORD),-record e2e/timing/ran.yaml) \
	  $(if $(ALSO_OLDEST),-beside "$(OLDEST) go test -count=1 -timeout 20m -parallel 2 -run ^($(subst $() ,|,$(OLDEST_STORIES)))$$ ./e2e/stories") \
	  -beside "env SIM_SEED=$(COMMITS_SEED) SIM_MINUTES=2 SIM_AGAIN=3 nice -n 10 go test -count=1 -timeout 30m -v -run ^TestSim$$ ./cmd/spot-handler" \
	  -beside "nice -n 10 go -C e2e/aws test -count=1 ./..." \
	  -beside "nice -n 10 go -C e2e/plots test -count=1 ./..." \
	  -beside "nice -n 10 go test -count=1 -timeout 60m -p 2 -parallel 3 $$(go list ./... | grep -vE '/e2e/(stories|forecast|hostile|sim/reality)$$' | tr '\n' ' ')" \
	  -after "go test -count=1 -timeout 20m ./e2e/forecast" \
	  -after "go test -count=1 -timeout 30m ./e2e/sim/reality" \
	  "go test -count=1 -timeout 60m -parallel $(PARALLEL) ./e2e/stories" \
	  "go test -count=1 -timeout 20m ./e2e/hostile"

lint:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -d $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go -C e2e/aws vet ./...
	go -C e2e/plots vet ./...
	go tool -modfile=e2e/lint/binaries/go.mod staticcheck ./...
	go -C e2e/aws tool -modfile=../lint/binaries/go.mod staticcheck ./...
	go -C e2e/plots tool -modfile=../lint/binaries/go.mod staticcheck ./...
	go tool -modfile=e2e/lint/binaries/go.mod actionlint

demo:
	@go run ./e2e/tool -build controlplane
	@go run ./e2e/demo

chaos:
	@go run ./e2e/tool -build controlplane helm
	@go run ./e2e/chaos $(if $(SEED),-seed $(SEED)) $(if $(MINUTES),-minutes $(MINUTES)) $(if $(ROUND),-round $(ROUND)) $(if $(MODE),-mode $(MODE)) $(if $(SHORT),-short)

sim:
	go test -c -o bin/sim.test ./cmd/spot-handler
	cd cmd/spot-handler && SIM_SEED=$(SEED) SIM_ROUNDS=$(or $(ROUNDS),$(if $(MINUTES),,100)) SIM_MINUTES=$(MINUTES) \
	  ../../bin/sim.test -test.count=1 -test.timeout 24h -test.v -test.run '^TestSim$$'

reality:
	@go run ./e2e/tool -build controlplane
	go test -count=1 -timeout 24h -v -run TestReality ./e2e/sim/reality $(if $(ROUNDS),-rounds $(ROUNDS)) $(if $(SEED),-seed $(SEED))

scale:
	go test -c -o bin/sim.test ./cmd/spot-handler
	cd cmd/spot-handler && SIM_SCALE=$(or $(NODES),all) ../../bin/sim.test -test.count=1 -test.timeout 24h -test.v -test.run '^TestScale$$'

mutants:
	go run ./e2e/sim/mutants $(if $(SEED),-seed $(SEED)) $(if $(DRAW),-draw $(DRAW)) $(if $(MORE),-more $(MORE)) $(if $(ROUNDS),-rounds $(ROUNDS)) \
	  $(or $(PACKAGES),./drain ./drain/plan ./handler ./handler/provisioner ./queue)

# One after the other, as `go test -fuzz` takes a single target.
fuzz:
	@grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do \
	  for target in $$(sed -n 's/^func \(Fuzz[^(]*\).*/\1/p' "$$file"); do \
	    echo "$$target in $$(dirname "$$file")"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(or $(MINUTES),1)m "$$(dirname "$$file")" </dev/null || exit 1; \
	  done; \
	done

vulnerabilities:
	go tool -modfile=e2e/lint/binaries/go.mod govulncheck ./...

hostile:
	@go run ./e2e/tool -build controlplane helm
	go test -count=1 -timeout 24h -v -run TestHostile ./e2e/hostile -minutes $(or $(MINUTES),10) $(if $(SEED),-seed $(SEED)) -size $(or $(SIZE),12)

upgrade:
	go run ./e2e/tool -build controlplane helm
	SPOT_HANDLER_E2E_SIDE_BY_SIDE=$(or $(MINUTES),3)m go test -count=1 -timeout 24h -v -run TestUpgradeAndRollback ./e2e/stories

accuracy:
	@go run ./e2e/tool -build controlplane
	go test -count=1 -timeout 90m -v -run TestForecast ./e2e/forecast -rounds $(or $(ROUNDS),6) $(if $(CLUSTERS),-clusters $(CLUSTERS)) $(if $(SEED),-seed $(SEED))

bench:
	@go run ./e2e/tool -build controlplane
	go test -timeout 3h -run '^$$' -bench . -benchtime 1x ./e2e/bench
	go -C e2e/plots run .

# Of several platforms, as in PLATFORM=linux/amd64,linux/arm64, buildah makes a list only
# with --manifest, and adds to one that is there.
image:
	@name=-t; if command -v buildah >/dev/null; then tool="buildah build --build-arg BUILDPLATFORM=linux/$$(go env GOHOSTARCH)"; \
	case '$(PLATFORM)' in *,*) name=--manifest; buildah rmi $(IMAGE) >/dev/null 2>&1;; esac; \
	else tool='docker build'; fi; set -x; \
	$$tool --platform $(PLATFORM) --build-arg VERSION=$(VERSION) --build-arg COMMIT=$(COMMIT) $$name $(IMAGE) .

# A chart holds no files from outside: these are copies, which a test compares.
chart:
	rm -rf deploy/chart/files
	mkdir -p deploy/chart/files/alerts
	cp $$(grep -l '^groups:' deploy/alerts/*.yaml) deploy/chart/files/alerts/
	cp deploy/dashboards/spot-handler.json deploy/chart/files/
	$(HELM) lint --strict deploy/chart --set image.repository=registry.example.com/spot-handler
	$(HELM) package deploy/chart --destination dist

release:
	.github/release '$(VERSION)' '$(DIST)'
