# make build   the daemon, in bin/
# make test    every test: unit, and end to end on a control plane of real binaries
# make demo    an interruption, start to end, live in this terminal
# make bench   the figures of the README, each beside the raw limit of this machine
# make lint    vet and gofmt
# make image   a container image, with buildah or docker, for PLATFORM
# make chart   copy alerts and dashboard into the chart, and pack it into dist/
#
# test, demo and bench build the control plane once (about 9 minutes on 2 cores), test and
# chart also Helm (3 minutes), into the user's cache directory; from then on they start it
# in seconds. test takes no result from Go's cache: that does not see a change of the daemon
# where a test builds it by another process.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
IMAGE   ?= spot-handler:$(VERSION)
PLATFORM ?= linux/amd64

export CGO_ENABLED = 0

.PHONY: build test lint demo bench image chart

build:
	go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/spot-handler

test: lint
	go run ./e2e/controlplane/cmd/controlplane -build-only
	go run ./e2e/chart/cmd/helm version
	go -C e2e/aws test -count=1 ./...
	go test -count=1 -timeout 70m -p 1 -parallel 3 ./...

lint:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -d $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go -C e2e/aws vet ./...

demo:
	@go run ./e2e/controlplane/cmd/controlplane -build-only
	@go run ./e2e/demo

bench:
	@go run ./e2e/controlplane/cmd/controlplane -build-only
	go test -timeout 60m -run '^$$' -bench . -benchtime 1x ./e2e/bench

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
	go run ./e2e/chart/cmd/helm lint --strict deploy/chart --set image.repository=registry.example.com/spot-handler
	go run ./e2e/chart/cmd/helm package deploy/chart --destination dist
