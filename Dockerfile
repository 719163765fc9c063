# The image holds the binary and the CA certificates that AWS's endpoints need, and
# nothing else: no shell, no package manager. The Go toolchain runs on the builder's
# own platform and cross-compiles, so that arm64 costs no emulation.
#
#   docker build --platform linux/arm64 --build-arg VERSION=v1.0.0 -t spot-handler:v1.0.0 .
#
# An older buildah, as Debian 12 has it, has to be told its own platform: --build-arg
# BUILDPLATFORM=linux/amd64. `make image` does.
#
# BUILDER may name any image with Go 1.26 and CA certificates, such as a mirror's. A release
# names one by its digest, which it notes. No layer of it is in the result.
ARG BUILDER=docker.io/library/golang:1.26-bookworm

FROM --platform=$BUILDPLATFORM ${BUILDER} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY cmd cmd
COPY drain drain
COPY handler handler
COPY imds imds
COPY queue queue
# One on a line: of several on one line, buildah takes only the first.
ARG TARGETOS
ARG TARGETARCH
ARG VERSION=dev
ARG COMMIT=unknown
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath \
    -ldflags "-s -w -X main.version=$VERSION -X main.commit=$COMMIT" -o /spot-handler ./cmd/spot-handler

FROM scratch
ARG VERSION=dev
ARG COMMIT=unknown
LABEL org.opencontainers.image.title=spot-handler
LABEL org.opencontainers.image.version=$VERSION
LABEL org.opencontainers.image.revision=$COMMIT
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /spot-handler /spot-handler
# nonroot by number: Kubernetes' runAsNonRoot cannot check a name
USER 65532:65532
ENTRYPOINT ["/spot-handler"]
