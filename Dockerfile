# The image holds the binary and the CA certificates that AWS's endpoints need, and
# nothing else: no shell, no package manager. The Go toolchain runs on the builder's
# own platform and cross-compiles, so that arm64 costs no emulation.
#
#   docker build --platform linux/arm64 --build-arg VERSION=v1.0.0 -t spot-handler:v1.0.0 .
#
# BUILDER may name any image with Go 1.26 and CA certificates, such as a mirror's.
ARG BUILDER=golang:1.26-bookworm

FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY drain drain
COPY handler handler
COPY imds imds
COPY queue queue
ARG TARGETOS TARGETARCH VERSION=dev COMMIT=unknown
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
    -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT" -o /spot-handler ./cmd/spot-handler

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /spot-handler /spot-handler
# nonroot by number: Kubernetes' runAsNonRoot cannot check a name
USER 65532:65532
ENTRYPOINT ["/spot-handler"]
