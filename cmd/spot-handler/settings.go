package main

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/managed"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
	"spot-handler/handler/turns"
	"spot-handler/handler/webhook"
	"spot-handler/imds"
)

// settings are what the operator means.
type settings struct {
	config
	policy     drain.Policy
	nodes      labels.Selector
	kinds      []interruption.Kind // imds
	managed    managed.Tag         // queue
	rebalances turns.Concurrency
	networks   []netip.Prefix
	fallbacks  placeholder.Selector
	webhooks   webhook.Options
}

// parse reads what was typed, and the files that it names, once. It names everything that is wrong.
func (c config) parse() (s settings, problems []error) {
	s = settings{config: c, policy: drain.Policy{Strategy: drain.Strategy(c.strategy), Blocked: drain.BlockedPolicy(c.blocked), Margin: c.margin}}
	bad := func(flag, format string, args ...any) {
		problems = append(problems, fmt.Errorf("--%s (%s): %s", flag, variable(flag), fmt.Sprintf(format, args...)))
	}
	for _, choice := range c.choices() {
		if !slices.Contains(choice.allowed, choice.value) {
			bad(choice.flag, "%q: want one of %s", choice.value, strings.Join(choice.allowed, ", "))
		}
	}
	const ever = time.Duration(1<<63 - 1)
	for _, of := range []struct {
		flag        string
		value       time.Duration
		least, most time.Duration
		orZero      bool
		want        string
	}{
		{"margin", c.margin, 0, 100 * time.Second, true, "0s to 100s, as EC2 gives two minutes in all"},
		{"rebalance-ttl", c.rebalanceTTL, 0, ever, true, "0s (never) or more"},
		{"scheduled-lead", c.scheduledLead, 0, ever, true, "0s or more"},
		{"replacement-ttl", c.replacementTTL, 30 * time.Second, ever, true, "0s (keep it) or at least 30s, as pods need some time to come"},
		{"heartbeat-until", c.heartbeatUntil, 30 * time.Second, 48 * time.Hour, true, "0s (none), or 30s to 48h, as AWS has it"},
		{"poll-interval", c.pollInterval, 500 * time.Millisecond, 30 * time.Second, c.mode != modeIMDS, "500ms to 30s"},
	} {
		if (of.value < of.least || of.value > of.most) && (of.value != 0 || !of.orZero) {
			bad(of.flag, "%s: want %s", of.value, of.want)
		}
	}
	for flag, namespace := range map[string]string{"placeholder-namespace": c.placeholderNamespace, "lease-namespace": c.leaseNamespace} {
		if len(validation.IsDNS1123Label(namespace)) > 0 && (flag != "lease-namespace" || namespace != "") {
			bad(flag, "%q is no namespace name", namespace)
		}
	}
	var err error
	if s.rebalances, err = turns.ParseConcurrency(c.maxConcurrentRebalances); err != nil {
		bad("max-concurrent-rebalances", "%v", err)
	}
	for _, text := range c.noticeNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			bad("notice-networks", "%q: want networks such as 10.0.0.0/8", text)
		}
		s.networks = append(s.networks, network.Masked())
	}
	for from, to := range c.fallback {
		for _, pool := range []string{from, to} {
			if len(validation.IsDNS1123Subdomain(pool)) > 0 {
				bad("fallback-nodepool", "%q is no NodePool name: want FROM=TO, such as batch=batch-fallback", pool)
			}
		}
	}
	if s.fallbacks, err = placeholder.ParseSelector(c.fallbackSelector); err != nil {
		bad("fallback-selector", "%v", err)
	} else if s.fallbacks.Empty() && (c.fallbackSelector != "" || c.provisioner == provisioner.Placeholder) {
		bad("fallback-selector", "%q selects no particular node: want a label selector, such as node-lifecycle=on-demand", c.fallbackSelector)
	}
	if s.nodes, err = labels.Parse(c.nodeSelector); err != nil {
		bad("node-selector", "%v", err)
	}
	if c.placeholderImage == "" || strings.TrimSpace(c.placeholderImage) != c.placeholderImage {
		bad("placeholder-image", "%q is no image", c.placeholderImage)
	}
	if _, _, err := net.SplitHostPort(c.httpAddr); err != nil {
		bad("http-addr", "%q: want host:port, such as :8080", c.httpAddr)
	}
	s.webhooks = c.webhook.parse(bad)
	switch c.mode {
	case modeIMDS:
		if c.nodeName == "" {
			bad("node-name", "not set: give the Node's name, in a pod from the downward API (fieldRef spec.nodeName) as NODE_NAME")
		}
		if s.kinds, err = kindsOf(c.watching); err != nil {
			bad("watch", "%v", err)
		}
	case modeQueue:
		if u, err := url.Parse(c.queueURL); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
			bad("queue-url", "%q: want the queue's URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler", c.queueURL)
		}
		if s.managed, err = managed.ParseTag(c.managedTag); err != nil {
			bad("managed-tag", "%v", err)
		}
	}
	return s, problems
}

// choice is a flag that takes one of some values.
type choice struct {
	flag, value string
	allowed     []string
}

func (c *config) choices() []choice {
	return []choice{
		{"replacement", c.replacement, []string{replacementAlways, replacementWhenNeeded}},
		{"provisioner", c.provisioner, []string{provisioner.Auto, provisioner.Karpenter, provisioner.ASG, provisioner.Placeholder, provisioner.None}},
		{"drain-strategy", c.strategy, names(drain.Strategies())},
		{"blocked-pods", c.blocked, names(drain.BlockedPolicies())},
		{"rebalance", c.rebalance, names(interruption.RebalancePolicies())},
		{"rebalance-capacity", c.rebalanceCapacity, karpenter.RebalanceCapacities()},
		{"log-format", c.logFormat, []string{"", logJSON, logConsole}},
		{"log-level", c.logLevel, logLevels},
	}
}

// parse reads all that is named, and calls bad for what cannot be used.
func (c webhookConfig) parse(bad func(flag, format string, args ...any)) webhook.Options {
	var o webhook.Options
	var err error
	header := http.Header{}
	if c.urlFile != "" {
		file := webhook.Endpoint{URLFile: c.urlFile}
		if _, _, err = file.Read(); err != nil {
			bad("webhook-url-file", "%v", err)
		}
		o.Endpoint.URLFile = c.urlFile
	}
	if c.headersFile != "" {
		file := webhook.Endpoint{HeadersFile: c.headersFile}
		if _, header, err = file.Read(); err != nil {
			bad("webhook-headers-file", "%v", err)
		}
		o.Endpoint.HeadersFile = c.headersFile
	}
	if c.proxy != "" {
		if o.Proxy, err = webhook.ParseProxy(c.proxy); err != nil {
			bad("webhook-proxy", "%v", err)
		}
	}
	if c.templateFile != "" {
		text, err := os.ReadFile(c.templateFile)
		if err == nil {
			o.Template, err = webhook.ParseTemplate(string(text), header)
		}
		if err != nil {
			bad("webhook-template-file", "%v", err)
		}
	}
	if c.urlFile == "" {
		for _, given := range []struct{ flag, value string }{
			{"webhook-headers-file", c.headersFile}, {"webhook-template-file", c.templateFile}, {"webhook-proxy", c.proxy},
		} {
			if given.value != "" {
				bad(given.flag, "of no use without --webhook-url-file")
			}
		}
	}
	return o
}

// watched are the values of --watch.
var watched = map[string]interruption.Kind{
	"spot":             interruption.SpotInterruption,
	"lifecycle":        interruption.InstanceTerminating,
	"rebalance":        interruption.RebalanceRecommendation,
	"scheduled-events": interruption.ScheduledEvent,
}

// watchable are the names of watched, in the order of [imds.Kinds].
func watchable() (names []string) {
	for _, kind := range imds.Kinds() {
		for name, k := range watched {
			if k == kind {
				names = append(names, name)
			}
		}
	}
	return names
}

// kindsOf are the kinds of these values, in the order of [imds.Kinds].
func kindsOf(names []string) (kinds []interruption.Kind, err error) {
	for _, name := range names {
		if _, ok := watched[name]; !ok {
			return nil, fmt.Errorf("%q: want some of %s", name, strings.Join(watchable(), ", "))
		}
	}
	for _, name := range watchable() {
		if slices.Contains(names, name) {
			kinds = append(kinds, watched[name])
		}
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("empty, so nothing is polled: want some of %s", strings.Join(watchable(), ", "))
	}
	return kinds, nil
}
