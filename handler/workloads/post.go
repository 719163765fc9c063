package workloads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	smithytime "github.com/aws/smithy-go/time"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	corev1 "k8s.io/api/core/v1"

	"spot-handler/drain"
)

const (
	// contentType is that of a CloudEvent in structured mode.
	// https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md
	contentType = "application/cloudevents+json; charset=utf-8"

	// attempts, each of attemptTimeout, are what a pod gets: whoever does not answer within
	// seconds has no more to say.
	attempts       = 2
	attemptTimeout = 2 * time.Second
	// pause is between them, so that a server which was just starting has a chance.
	pause = 500 * time.Millisecond

	// longestAnswer is how much of an answer is read, in bytes.
	longestAnswer = 4 << 10
)

// The values of workload_notices_total's label result.
const (
	resultDelivered = "delivered" // taken, without a word on when to leave
	resultAnswered  = "answered"  // taken, with one
	resultUnusable  = "unusable"  // taken, with an answer that means nothing
	resultRefused   = "refused"   // answered with another status than 2xx
	resultFailed    = "failed"    // not answered
	resultInvalid   = "invalid"   // not sent: the annotation or the pod's address is no good
	resultDropped   = "dropped"   // not sent: too many of its namespace waited, or it had waited for too long
)

func newResults(reg prometheus.Registerer) *prometheus.CounterVec {
	results := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "spot_handler_workload_notices_total",
		Help: "Notices to pods that ask for them, by what became of each.",
	}, []string{"result"})
	for _, r := range []string{resultDelivered, resultAnswered, resultUnusable, resultRefused, resultFailed, resultInvalid, resultDropped} {
		results.WithLabelValues(r)
	}
	return results
}

// newClient goes where it is sent and nowhere else: through no proxy, after no redirect. It keeps
// no connection, as a pod is notified once or twice in its life.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            (&net.Dialer{Timeout: attemptTimeout}).DialContext,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: longestAnswer,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post notifies one pod, and returns what it has answered, if it says when it leaves. The error is
// for the log.
func (t *Notifier) post(ctx context.Context, target *url.URL, body []byte) (when drain.When, result string, err error) {
	for attempt := 1; ; attempt++ {
		when, result, err = t.attempt(ctx, target, body)
		if result != resultFailed || attempt == attempts || smithytime.SleepWithContext(ctx, pause) != nil {
			return when, result, err
		}
	}
}

func (t *Notifier) attempt(ctx context.Context, target *url.URL, body []byte) (drain.When, string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return "", resultInvalid, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", t.opts.UserAgent)
	resp, err := t.client.Do(req)
	if err != nil {
		return "", resultFailed, err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		if resp.StatusCode >= 500 {
			return "", resultFailed, fmt.Errorf("answered with status %d", resp.StatusCode)
		}
		return "", resultRefused, fmt.Errorf("answered with status %d", resp.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, longestAnswer+1))
	if err != nil {
		return "", resultUnusable, fmt.Errorf("read answer: %w", err)
	}
	when, err := parseAnswer(text)
	switch {
	case err != nil:
		return "", resultUnusable, err
	case when == "":
		return "", resultDelivered, nil
	}
	return when, resultAnswered, nil
}

// parseAnswer reads when a pod wants to leave; an empty answer says nothing about it.
func parseAnswer(text []byte) (drain.When, error) {
	if len(text) > longestAnswer {
		return "", fmt.Errorf("read answer: want at most %d bytes", longestAnswer)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		return "", nil
	}
	var answer struct {
		When drain.When `json:"when"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return "", errors.New("read answer: no JSON object")
	}
	if answer.When != "" && !slices.Contains(drain.Whens(), answer.When) {
		return "", fmt.Errorf("read answer: when is %.40q, want one of %q", answer.When, drain.Whens())
	}
	return answer.When, nil
}

// longestPath bounds what is read from an annotation.
const longestPath = 512

// neverPods are networks in which no pod is: of AWS's own services, which are not link-local in
// IPv6, and those that stand for IPv4 addresses, also for link-local ones.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
// https://www.iana.org/assignments/iana-ipv6-special-registry/
var neverPods = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), // NAT64
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0:0/96"), netip.MustParsePrefix("2002::/16"),
}

// target is where the pod is notified: at the IP in its status, and nowhere else. Of the annotation
// only the port and the path count.
func (t *Notifier) target(pod *corev1.Pod, annotation string) (*url.URL, error) {
	if pod.Spec.HostNetwork && len(t.opts.Networks) == 0 {
		return nil, errors.New("the pod is on its host's network, which --notice-networks does not name")
	}
	addr, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || addr.Zone() != "" {
		return nil, fmt.Errorf("the pod's IP is %.64q", pod.Status.PodIP)
	}
	switch addr = addr.Unmap(); {
	case !t.allowed(addr):
		return nil, fmt.Errorf("the pod's IP %s is in no network where pods are told", addr)
	case !pod.Spec.HostNetwork && t.opts.IsNode(addr):
		return nil, fmt.Errorf("the pod's IP %s is a node's, and the pod is not on its host's network", addr)
	}
	port, path, _ := strings.Cut(annotation, "/")
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 || strconv.FormatUint(number, 10) != port {
		return nil, fmt.Errorf("%.64q, want PORT or PORT/PATH, with a port from 1 to 65535", annotation)
	}
	parsed, err := url.Parse("http://pod/" + path)
	if err != nil || len(path) > longestPath || parsed.Host != "pod" || parsed.Fragment != "" {
		return nil, fmt.Errorf("%.64q, want a path of at most %d characters as in a URL", annotation, longestPath)
	}
	parsed.Host = net.JoinHostPort(addr.String(), port)
	return parsed, nil
}

// allowed reports whether pods can have that address. Those who own a node can write what they
// likes into the status of the node's pods: we must not be made to call ourselves, or the
// metadata service.
func (t *Notifier) allowed(addr netip.Addr) bool {
	if len(t.opts.Networks) > 0 {
		return slices.ContainsFunc(t.opts.Networks, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	return addr.IsGlobalUnicast() && !slices.ContainsFunc(neverPods, func(p netip.Prefix) bool { return p.Contains(addr) })
}

const servicesTimeout = time.Second

// ofService reports whether the address is one that Services have, and that is not named by
// --notice-networks. Where that cannot be read it is logged, and the address is taken for a pod's.
func (t *Notifier) ofService(ctx context.Context, addr string) bool {
	if len(t.opts.Networks) > 0 {
		return false
	}
	networks, _ := t.services.Get(ctx, "")
	ip, err := netip.ParseAddr(addr)
	return err == nil && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// readServices reads the ServiceCIDRs, of which a cluster has one or two.
// https://kubernetes.io/docs/reference/networking/virtual-ips/#ip-address-objects
func (t *Notifier) readServices(ctx context.Context, key string) (networks []netip.Prefix, err error) {
	defer func() {
		if err != nil {
			t.opts.Logger.Warn().Err(err).Msg("notices to addresses of Services are not refused")
			last, _ := t.services.Last(key)
			networks = last.Value
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, servicesTimeout)
	defer cancel()
	var list struct {
		Items []struct{ Spec struct{ CIDRs []string } }
	}
	answer, err := t.opts.Pods.Get().AbsPath("/apis/networking.k8s.io/v1/servicecidrs").MaxRetries(0).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(answer, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list servicecidrs.networking.k8s.io: %w", err)
	}
	for _, item := range list.Items {
		for _, text := range item.Spec.CIDRs {
			network, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("read network of Services: %w", err)
			}
			networks = append(networks, network)
		}
	}
	return networks, nil
}
