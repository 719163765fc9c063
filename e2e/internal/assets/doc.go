// Package assets builds programs that tests need from Go modules, which pin them: see the
// directories named binaries below e2e. It keeps them in a cache outside the checkout.
//
// The cache has one directory per key, and the key is a hash over everything
// that decides what the programs are: the pins, the Go version and the link
// flags. A directory is only ever added to, by rename, so a build that is
// interrupted leaves nothing half behind and goes on where it was. Any number of
// processes may call Ensure at once: one builds, the others wait for it.
package assets
