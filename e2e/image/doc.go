// Package image proves the Dockerfile: its tests build it with the real buildah, as
// `make image` does, for each architecture, and look at what has come out.
//
// Nothing is pulled. The base of the build stage, a build argument of the Dockerfile, is
// made from this machine: its shell, its CA certificates, and its Go toolchain and module
// cache, which are mounted; what the cache lacks is downloaded first. Where there is no
// buildah, or it is not allowed to do its work, the test says so and does not run; CI
// installs it.
package image
