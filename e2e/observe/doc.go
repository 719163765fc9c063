// Package observe runs what people watch spot-handler with, the real Prometheus, and reads what deploy/ has for it:
// alerts and a dashboard.
//
// Prometheus takes many minutes to build, so it is Debian's package, found on the PATH or downloaded once from Debian's
// archive into the user's cache, without being installed. On other systems the tests that need it are skipped, and say
// so; in CI that is a failure.
package observe
