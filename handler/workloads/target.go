package workloads

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// longestPath bounds what is read from an annotation.
const longestPath = 512

// neverPods are networks in which no pod is: of AWS's own services, which are not link-local in
// IPv6, and those that stand for IPv4 addresses, also for link-local ones.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
// https://www.iana.org/assignments/iana-ipv6-special-registry/
var neverPods = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),
	netip.MustParsePrefix("64:ff9b::/96"),   // NAT64
	netip.MustParsePrefix("64:ff9b:1::/48"), // NAT64
	netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("::ffff:0:0:0/96"),
	netip.MustParsePrefix("2002::/16"),
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
		return nil, fmt.Errorf("the pod's IP %s is in no network where pods are notified", addr)
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

// allowed reports whether pods can have that address. The owner of a node can write what they
// like into the status of the node's pods: we must not be made to call ourselves, or the
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
	answer, err := t.opts.Pods.Get().AbsPath("/apis/networking.k8s.io/v1/servicecidrs").MaxRetries(0).
		SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx).Raw() // it isn't worth its API group's types
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
