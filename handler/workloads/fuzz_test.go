package workloads

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"spot-handler/drain/plan"
)

// A server in a pod answers what it likes. Of that, one of three words counts, or nothing.
func FuzzAnswer(f *testing.F) {
	for _, text := range []string{"", " \n", `{"when":"now"}`, `{"when":"last","when":"hold"}`, `{"WHEN":"now"}`, `[]`, `null`, `{"when":null}`, `{"when":["now"]}`, "\x1b]0;x\a", strings.Repeat("[", 4000)} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		when, err := parseAnswer(text)
		switch {
		case err != nil && when != "":
			t.Errorf("%q counts, with the error %v", when, err)
		case err == nil && when != "" && !slices.Contains(plan.Whens(), when):
			t.Errorf("%q counts, want one of %q", when, plan.Whens())
		case err == nil && len(text) > longestAnswer:
			t.Errorf("an answer of %d bytes was read", len(text))
		}
		if err != nil && strings.ContainsFunc(err.Error(), isControl) {
			t.Errorf("the error %q has control characters", err)
		}
	})
}

// Whoever owns a pod says at which port and path it is notified, and whoever owns its node at
// which address. It is never another host than that address, nor one that is not allowed.
func FuzzTarget(f *testing.F) {
	for _, s := range [][2]string{
		{"127.0.0.1", "8080"}, {"10.0.0.1", "8080/path?x=1"}, {"::ffff:169.254.169.254", "80/latest"}, {"fd00:ec2::254", "80"}, {"fe80::1%eth0", "1"},
		{"64:ff9b::a9fe:a9fe", "1/"}, {"10.0.0.1", "80/@evil/"}, {"10.0.0.1", "80//evil/x"}, {"10.0.0.1", "80/\r\nHost: evil"}, {"10.0.0.1", "0x50/"}, {"0.0.0.0", "1"},
	} {
		f.Add(s[0], s[1])
	}
	notifier := New(Options{IsNode: func(netip.Addr) bool { return false }, Logger: zerolog.Nop(), Registerer: prometheus.NewRegistry()})
	f.Fuzz(func(t *testing.T, ip, annotation string) {
		pod := podOf("a")
		pod.Status.PodIP = ip
		target, err := notifier.target(pod, annotation)
		if err != nil {
			if strings.ContainsFunc(err.Error(), isControl) {
				t.Errorf("the error %q has control characters", err)
			}
			return
		}
		host, err := netip.ParseAddrPort(target.Host)
		if err != nil || target.Scheme != "http" || target.User != nil || host.Port() == 0 {
			t.Fatalf("%q of a pod at %q is %s", annotation, ip, target)
		}
		own, err := netip.ParseAddr(ip)
		if err != nil || own.Unmap() != host.Addr() {
			t.Errorf("a pod at %q is notified at %s", ip, host)
		}
		if a := host.Addr(); a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() || slices.ContainsFunc(neverPods, func(p netip.Prefix) bool { return p.Contains(a) }) {
			t.Errorf("a pod is notified at %s", a)
		}
		if strings.ContainsFunc(target.RequestURI(), isControl) {
			t.Errorf("the request for %q is %q", annotation, target.RequestURI())
		}
	})
}

func isControl(r rune) bool { return unicode.IsControl(r) }
