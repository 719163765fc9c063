// Package assets builds programs that tests need from Go modules: those of a control
// plane, which e2e/controlplane/binaries pins, and for older versions the modules below it;
// Helm, which e2e/chart/binaries pins, and linters, which e2e/lint/binaries pins. It keeps
// them in a cache outside the checkout.
//
// The cache has one directory per key, and the key is a hash over everything
// that decides what the programs are: the pins, the Go version and the link
// flags. A directory is only ever added to, by rename, so a build that is
// interrupted leaves nothing half behind and goes on where it was. Any number of
// processes may call Ensure at once: one builds, the others wait for it.
package assets
