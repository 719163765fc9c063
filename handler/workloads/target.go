package workloads

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// longestPath bounds what is read from an annotation.
const longestPath = 512

// metadataIPv6 is the metadata service, which has no link-local address in IPv6.
// https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
var metadataIPv6 = netip.MustParseAddr("fd00:ec2::254")

// target is where the pod is told: at the IP in its status, and nowhere else. Of the annotation
// only the port and the path count.
func (t *Teller) target(pod *corev1.Pod, annotation string) (*url.URL, error) {
	if pod.Spec.HostNetwork && !t.opts.HostNetwork {
		return nil, errors.New("the pod is on its host's network, which --notice-networks does not name")
	}
	addr, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || addr.Zone() != "" {
		return nil, fmt.Errorf("the pod's IP is %.64q", pod.Status.PodIP)
	}
	if addr = addr.Unmap(); !t.allowed(addr) {
		return nil, fmt.Errorf("the pod's IP %s is in no network where pods are told", addr)
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

// allowed reports whether pods can have that address. Whoever owns a node can write what it
// likes into the status of the node's pods: we must not be made to call ourselves, or the
// metadata service.
func (t *Teller) allowed(addr netip.Addr) bool {
	if len(t.opts.Networks) > 0 {
		return slices.ContainsFunc(t.opts.Networks, func(p netip.Prefix) bool { return p.Contains(addr) })
	}
	return addr.IsGlobalUnicast() && addr != metadataIPv6
}
