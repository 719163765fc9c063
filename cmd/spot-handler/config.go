package main

import (
	"slices"
	"time"

	"github.com/rs/zerolog"

	"spot-handler/drain"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
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

// config is what the operator has typed; settings are what that means. Fields of the other modes are
// zero.
type config struct {
	mode string

	// source: imds
	nodeName     string
	pollInterval time.Duration
	drain        bool
	watching     []string
	// source: queue
	queueURL   string
	managedTag string
	// of the whole fleet: drain, queue
	leaderElect    bool
	leaseNamespace string
	podName        string
	podNamespace   string

	nodeSelector string

	strategy   string
	blocked    string
	cordonOnly bool
	margin     time.Duration
	rebalance  string

	maxConcurrentRebalances string
	rebalanceTTL            time.Duration
	rebalanceCapacity       string

	workloadNotices bool
	noticeNetworks  []string

	scheduledLead time.Duration

	heartbeatUntil time.Duration // queue

	provisioner string
	replacement string
	fallback    map[string]string
	release     bool

	replacementTTL time.Duration

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
	evict.StringVar(&c.strategy, "drain-strategy", string(drain.Surge), "surge: the replacement pods of a Deployment's pods are made first, as many at a time as its maxSurge allows, and all other pods are held; hold: a pod runs on until the replacement is ready or its eviction deadline has come; at-once: pods are evicted as soon as the replacement is requested")
	evict.StringVar(&c.blocked, "blocked-pods", string(drain.Leave), "a pod that its disruption budget still refuses at its eviction deadline: leave it until its node ends, or delete it past the budget; the annotation "+drain.BlockedAnnotation+" on the pod or its namespace overrides it")
	evict.BoolVar(&c.cordonOnly, "cordon-only", false, "on every kind of interruption record, taint and cordon the node and do no more: no pod is moved, no replacement requested, nothing released")
	evict.DurationVar(&c.margin, "margin", 10*time.Second, "time kept free between the planned end of the last pod and EC2's deadline")
	evict.StringVar(&c.rebalance, "rebalance", string(interruption.RebalanceReplace), "on a rebalance recommendation: ignore, cordon, or replace (cordon and drain once the replacement is ready; there is no deadline); the annotation "+karpenter.RebalanceAnnotation+" on the node's NodePool overrides it")
	evict.StringVar(&c.maxConcurrentRebalances, "max-concurrent-rebalances", "10%", "how many nodes of a pool may be replaced at the same time for a rebalance recommendation: a number, or a percentage of the pool's nodes, rounded down and 1 at the least; the others wait in line, and take pods until it is their turn")
	evict.DurationVar(&c.rebalanceTTL, "rebalance-ttl", time.Hour, "how long a rebalance recommendation can go without progress, which is a pod that leaves, before the node is put back as it was; 0 never does")

	evict.DurationVar(&c.scheduledLead, "scheduled-lead", 30*time.Minute, "how long before the window of a scheduled event (a stop, a retirement, a reboot) the node is drained; until then it is only recorded")
	if c.mode == modeQueue {
		evict.DurationVar(&c.heartbeatUntil, "heartbeat-until", 0, "how long an Auto Scaling group is made to wait in all, by heartbeats, while its node is drained, such as 1h; not longer than AWS allows, nor shorter than the hook's timeout; 0 sends no heartbeats: the drain has the hook's timeout")
	}

	evict.BoolVar(&c.workloadNotices, "workload-notices", false, "notify pods with the annotation "+drain.NoticeAnnotation+" of the end of their node: with a POST to the pod's own IP, and with annotations")
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
	replacement.BoolVar(&c.release, "release-node", true, "terminate a drained node: with Karpenter, delete its NodeClaim; with an Auto Scaling group, terminate the detached instance after a rebalance recommendation")

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

// webhookConfig is what the operator has asked for about webhooks.
type webhookConfig struct {
	urlFile      string
	headersFile  string
	templateFile string
	proxy        string
}

func (c *webhookConfig) define(g group) {
	g.StringVar(&c.urlFile, "webhook-url-file", "", "`file` with the URL that is notified of every notice and outcome, such as a mounted Secret's, with a POST that Slack's incoming webhooks take; read again for each webhook")
	g.StringVar(&c.headersFile, "webhook-headers-file", "", "`file` with headers for it, a line \"Name: value\" each or one JSON object; read again for each webhook (default: Content-Type: application/json)")
	g.StringVar(&c.templateFile, "webhook-template-file", "", "`file` with a Go template of the body, with sprig's functions, such as {\"text\": {{ .Text | toJson }}} (default: what Slack takes)")
	g.StringVar(&c.proxy, "webhook-proxy", "", "URL of a proxy for webhooks only (default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as for all else)")
}
