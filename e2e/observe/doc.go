// Package observe runs what people watch spot-handler with, the real Prometheus and
// Alertmanager of Debian, and reads what deploy/ has for them: alerts and a dashboard.
//
// The two are not Go modules that this project could pin, as it pins its control plane.
// They are Debian's packages, found on the PATH or downloaded once from Debian's archive
// into the user's cache, without being installed. On other systems the tests that need
// them are skipped, and say so; in CI that is a failure.
package observe
