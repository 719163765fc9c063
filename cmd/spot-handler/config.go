package main

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/managed"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
	"spot-handler/handler/turns"
)

// The modes, which are the commands.
const (
	modeIMDS  = "imds"
	modeDrain = "drain"
	modeQueue = "queue"
)

// When a replacement is requested.
const (
	replacementAlways     = "always"
	replacementWhenNeeded = "when-needed"
)

// config is what the operator has asked for. Fields of the other mode are zero.
type config struct {
	mode string

	// source: imds
	nodeName     string
	pollInterval time.Duration
	drain        bool
	watching     []string
	kinds        []interruption.Kind // parsed by validate
	// source: queue
	queueURL   string
	managedTag string
	managed    managed.Tag // parsed by validate
	// of the whole fleet: drain, queue
	leaderElect    bool
	leaseNamespace string
	podName        string
	podNamespace   string

	nodes        labels.Selector // parsed by validate
	nodeSelector string

	strategy   string
	blocked    string
	cordonOnly bool
	margin     time.Duration
	rebalance  string

	rebalancesAtOnce        turns.Concurrency // parsed by validate
	maxConcurrentRebalances string
	rebalanceTTL            time.Duration
	rebalanceCapacity       string

	workloadNotices bool
	noticeNetworks  []string
	networks        []netip.Prefix // parsed by validate

	scheduledLead time.Duration

	heartbeatUntil time.Duration // queue

	provisioner string
	replacement string
	fallback    map[string]string
	release     bool

	replacementTTL time.Duration

	selector             placeholder.Selector // parsed by validate
	fallbackSelector     string
	placeholderNamespace string
	placeholderImage     string

	kubeconfig string

	webhook webhookConfig

	dryRun    bool
	httpAddr  string
	logLevel  string
	logFormat string
}

// fleet reports whether the process cares for all nodes, and not for its own alone.
func (c *config) fleet() bool { return c.mode != modeIMDS }

// define declares the flags of c.mode, in the order in which --help shows them.
func (c *config) define() []group {
	source, leader, evict, replacement := titled("Source of notices"), titled("Leader"), titled("Drain"), titled("Replacement")
	cluster, webhook, operation := titled("Cluster"), titled("Webhook"), titled("Operation")

	switch c.mode {
	case modeIMDS:
		source.StringVar(&c.nodeName, "node-name", "", "the Node that this process runs on; also $NODE_NAME (required)")
		source.DurationVar(&c.pollInterval, "poll-interval", 2*time.Second, "time between two polls for a spot notice; AWS advises 5s or less. The rest is polled every second time, scheduled events every 15th")
		hide(source, "poll-interval")
		source.BoolVar(&c.drain, "drain", true, "drain the node too; with --drain=false it is only marked, and spot-handler drain or queue drains it")
		source.StringSliceVar(&c.watching, "watch", watchable(), "what is polled; --rebalance says what is done on a recommendation")
	case modeQueue:
		source.StringVar(&c.queueURL, "queue-url", "", "URL of the SQS queue that EventBridge feeds (required)")
		source.StringVar(&c.managedTag, "managed-tag", "", "act only on instances that carry this `tag`, KEY or KEY=VALUE; messages of all others are deleted (default: on all)")
	}
	if c.fleet() {
		leader.BoolVar(&c.leaderElect, "leader-elect", true, "drain in one replica only; turn off only with a single replica")
		leader.StringVar(&c.leaseNamespace, "lease-namespace", "", "namespace of the Lease called "+leaseName+" (default: the pod's own, else kube-system)")
		leader.StringVar(&c.podName, "pod-name", "", "this process's own pod, which is moved last; also $POD_NAME (default: the host name, in a pod)")
		leader.StringVar(&c.podNamespace, "pod-namespace", "", "its namespace; also $POD_NAMESPACE (default: the service account's)")
		hide(leader, "leader-elect", "lease-namespace", "pod-name", "pod-namespace")
	}
	source.StringVar(&c.nodeSelector, "node-selector", "", "act only on nodes that this label `selector` selects, such as team=blue; a node labelled "+interruption.IgnoreLabel+"=true is left alone in any case (default: on all)")
	evict.StringVar(&c.strategy, "drain-strategy", string(drain.Surge), "surge: the successors of a Deployment's pods are made first, as many at a time as its maxSurge allows, and all other pods are held; hold: a pod runs on until the replacement is ready or its latest safe start has come; at-once: pods are evicted as soon as the replacement is requested")
	evict.StringVar(&c.blocked, "blocked-pods", string(drain.Leave), "a pod that its disruption budget still refuses at its latest safe start: leave it until its node ends, or delete it past the budget; the annotation "+drain.BlockedAnnotation+" on the pod or its namespace overrides it")
	evict.BoolVar(&c.cordonOnly, "cordon-only", false, "on every kind of interruption record, taint and cordon the node and do no more: no pod is moved, no replacement requested, nothing released")
	evict.DurationVar(&c.margin, "margin", 10*time.Second, "time kept free between the planned end of the last pod and EC2's deadline")
	evict.StringVar(&c.rebalance, "rebalance", string(interruption.RebalanceReplace), "on a rebalance recommendation: ignore, cordon, or replace (cordon and drain once the replacement is ready; there is no deadline); the annotation "+karpenter.RebalanceAnnotation+" on the node's NodePool overrides it")
	evict.StringVar(&c.maxConcurrentRebalances, "max-concurrent-rebalances", "10%", "how many nodes of a pool may be replaced at the same time for a rebalance recommendation: a number, or a percentage of the pool's nodes, rounded down and 1 at the least; the others wait in line, and take pods until it is their turn")
	evict.DurationVar(&c.rebalanceTTL, "rebalance-ttl", time.Hour, "how long a rebalance recommendation can go without progress, which is a pod that leaves, before the node is put back as it was; 0 never does")

	evict.DurationVar(&c.scheduledLead, "scheduled-lead", 30*time.Minute, "how long before the window of a scheduled event (a stop, a retirement, a reboot) the node is drained; until then it is only recorded")
	if c.mode == modeQueue {
		evict.DurationVar(&c.heartbeatUntil, "heartbeat-until", 0, "how long an Auto Scaling group is made to wait in all, by heartbeats, while its node is drained, such as 1h; not longer than AWS allows, nor shorter than the hook's timeout; 0 sends no heartbeats: the drain has the hook's timeout")
	}

	evict.BoolVar(&c.workloadNotices, "workload-notices", false, "tell pods with the annotation "+drain.NoticeAnnotation+" of the end of their node: with a POST to the pod's own IP, and with annotations")
	evict.StringSliceVar(&c.noticeNetworks, "notice-networks", nil, "networks in which pods are notified, such as 10.0.0.0/8; may be repeated. Pods on their host's network are notified only if it names theirs (default: any but loopback, link-local and multicast addresses, and those of Services and of AWS)")

	replacement.StringVar(&c.provisioner, "provisioner", provisioner.Auto, "what makes replacement nodes: auto (by what made the interrupted one), karpenter, asg (Auto Scaling groups; queue mode only), placeholder, or none (drain only)")
	replacement.StringToStringVar(&c.fallback, "fallback-nodepool", nil, "NodePool that replaces the nodes of another, such as batch=batch-fallback; may be repeated; the annotation spot-handler/fallback-nodepool on the NodePool overrides it (default: chosen for each node)")
	replacement.StringVar(&c.replacement, "replacement", replacementAlways, "when a replacement is requested: always, or when-needed, which is when the pods do not fit on nodes that are there")
	replacement.StringVar(&c.rebalanceCapacity, "rebalance-capacity", karpenter.SpotFirst, "what replaces a node that Karpenter made, on a rebalance recommendation: spot-first (another spot instance, of another type or in another zone than the one at risk, else as on a notice) or fallback (as on a notice)")
	replacement.DurationVar(&c.replacementTTL, "replacement-ttl", 10*time.Minute, "how long a replacement may be ready and empty before it is returned, where nothing else takes it away; 0 keeps it. Pods come within two minutes of a notice, and EC2 bills by the second")
	replacement.StringVar(&c.fallbackSelector, "fallback-selector", "", "label `selector` of the nodes that take the pods of nodes that Karpenter did not make, such as node-lifecycle=on-demand; low-priority placeholder pods ask the autoscaler for room on them (default: none are made)")
	replacement.StringVar(&c.placeholderNamespace, "placeholder-namespace", "spot-handler-placeholders", "namespace of the placeholder pods; there the process may make pods")
	replacement.StringVar(&c.placeholderImage, "placeholder-image", "pause:3.10", "`image` of the placeholder pods; best is the pause image that the nodes have")
	hide(replacement, "placeholder-namespace", "placeholder-image")
	replacement.BoolVar(&c.release, "release-node", true, "hand a drained node back to what made it: with Karpenter, delete its NodeClaim; with an Auto Scaling group, terminate the detached instance after a rebalance recommendation")

	cluster.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `file` of the cluster; also $KUBECONFIG (default: the pod's service account)")

	c.webhook.define(webhook)

	operation.BoolVar(&c.dryRun, "dry-run", false, "change nothing, neither in the cluster nor in the queue, and log what would be done")
	operation.StringVar(&c.httpAddr, "http-addr", ":8080", "address of /metrics, /healthz and /readyz")
	operation.StringVar(&c.logLevel, "log-level", zerolog.LevelInfoValue, "debug, info, warn or error")
	operation.StringVar(&c.logFormat, "log-format", "", "json, or console for people (default: console in a terminal)")
	hide(operation, "log-format")
	groups := []group{source, leader, evict, replacement, cluster, webhook, operation}
	return slices.DeleteFunc(groups, func(g group) bool { return !g.HasFlags() })
}

// validate names everything that is wrong at once.
func (c *config) validate() (problems []error) {
	bad := func(flag, format string, args ...any) {
		problems = append(problems, fmt.Errorf("--%s (%s): %s", flag, variable(flag), fmt.Sprintf(format, args...)))
	}
	for _, choice := range c.choices() {
		if !slices.Contains(choice.allowed, choice.value) {
			bad(choice.flag, "%q: want one of %s", choice.value, strings.Join(choice.allowed, ", "))
		}
	}
	if at, err := turns.ParseConcurrency(c.maxConcurrentRebalances); err != nil {
		bad("max-concurrent-rebalances", "%v", err)
	} else {
		c.rebalancesAtOnce = at
	}
	c.networks = nil
	for _, text := range c.noticeNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			bad("notice-networks", "%q: want networks such as 10.0.0.0/8", text)
		}
		c.networks = append(c.networks, network.Masked())
	}
	if c.rebalanceTTL < 0 {
		bad("rebalance-ttl", "%s: want 0s (never) or more", c.rebalanceTTL)
	}
	for from, to := range c.fallback {
		for _, pool := range []string{from, to} {
			if len(validation.IsDNS1123Subdomain(pool)) > 0 {
				bad("fallback-nodepool", "%q is no NodePool name: want FROM=TO, such as batch=batch-fallback", pool)
			}
		}
	}
	var err error
	if c.selector, err = placeholder.ParseSelector(c.fallbackSelector); err != nil {
		bad("fallback-selector", "%v", err)
	} else if c.selector.Empty() && (c.fallbackSelector != "" || c.provisioner == provisioner.Placeholder) {
		bad("fallback-selector", "%q selects no particular node: want a label selector, such as node-lifecycle=on-demand", c.fallbackSelector)
	}
	if c.nodes, err = labels.Parse(c.nodeSelector); err != nil {
		bad("node-selector", "%v", err)
	}
	if len(validation.IsDNS1123Label(c.placeholderNamespace)) > 0 {
		bad("placeholder-namespace", "%q is no namespace name", c.placeholderNamespace)
	}
	if c.placeholderImage == "" || strings.TrimSpace(c.placeholderImage) != c.placeholderImage {
		bad("placeholder-image", "%q is no image", c.placeholderImage)
	}
	if c.margin < 0 || c.margin > 100*time.Second {
		bad("margin", "%s: want 0s to 100s, as EC2 gives two minutes in all", c.margin)
	}
	if c.scheduledLead < 0 {
		bad("scheduled-lead", "%s: want 0s or more", c.scheduledLead)
	}
	if c.replacementTTL != 0 && c.replacementTTL < 30*time.Second {
		bad("replacement-ttl", "%s: want 0s (keep it) or at least 30s, as pods need some time to come", c.replacementTTL)
	}
	if _, _, err := net.SplitHostPort(c.httpAddr); err != nil {
		bad("http-addr", "%q: want host:port, such as :8080", c.httpAddr)
	}
	c.webhook.options(bad)
	switch c.mode {
	case modeIMDS:
		if c.nodeName == "" {
			bad("node-name", "not set: give the Node's name, in a pod from the downward API (fieldRef spec.nodeName) as NODE_NAME")
		}
		if c.pollInterval < 500*time.Millisecond || c.pollInterval > 30*time.Second {
			bad("poll-interval", "%s: want 500ms to 30s", c.pollInterval)
		}
		if c.kinds, err = kindsOf(c.watching); err != nil {
			bad("watch", "%v", err)
		}
	case modeQueue:
		if u, err := url.Parse(c.queueURL); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
			bad("queue-url", "%q: want the queue's URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler", c.queueURL)
		}
		if c.heartbeatUntil != 0 && (c.heartbeatUntil < 30*time.Second || c.heartbeatUntil > 48*time.Hour) {
			bad("heartbeat-until", "%s: want 0s (none), or 30s to 48h, as AWS has it", c.heartbeatUntil)
		}
		if c.managed, err = managed.ParseTag(c.managedTag); err != nil {
			bad("managed-tag", "%v", err)
		}
	}
	if c.leaseNamespace != "" && len(validation.IsDNS1123Label(c.leaseNamespace)) > 0 {
		bad("lease-namespace", "%q is no namespace name", c.leaseNamespace)
	}
	return problems
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

func names[T ~string](values []T) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = string(v)
	}
	return list
}

// logLevels are the levels that --log-level takes.
var logLevels = []string{
	zerolog.LevelDebugValue, zerolog.LevelInfoValue, zerolog.LevelWarnValue, zerolog.LevelErrorValue,
}
