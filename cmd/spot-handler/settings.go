package main

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/drain/plan"
	"spot-handler/handler/interruption"
	"spot-handler/handler/provisioner"
	"spot-handler/handler/provisioner/karpenter"
	"spot-handler/handler/provisioner/placeholder"
	"spot-handler/handler/turns"
	"spot-handler/handler/webhook"
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

// settings are what the operator means. Fields of the other modes are zero.
type settings struct {
	mode string

	// source: imds
	nodeName string
	drain    bool
	watching []string
	kinds    []interruption.Kind // of watching
	// source: queue
	queueURL string
	// of the whole fleet: drain, queue
	leaderElect  bool
	podName      string
	podNamespace string

	nodes labels.Selector

	policy     plan.Policy
	cordonOnly bool
	rebalance  interruption.RebalancePolicy

	rebalances   turns.Concurrency
	rebalanceTTL time.Duration
	calm         time.Duration

	workloadNotices bool
	noticeNetworks  []string
	networks        []netip.Prefix // of noticeNetworks

	scheduledLead time.Duration

	heartbeatUntil time.Duration // queue

	provisioner string
	replacement string
	fallback    map[string]string
	release     bool

	replacementTTL time.Duration

	fallbacks        placeholder.Selector
	placeholderImage string

	kubeconfig string

	webhooks        webhook.Options
	webhookTemplate string

	dryRun   bool
	httpAddr string
	logLevel string
}

// fleet reports whether the process cares for all nodes, and not for its own alone.
func (c *settings) fleet() bool { return c.mode != modeIMDS }

// bringsBack reports whether on-demand replacements are brought back to spot. Who leaves drained nodes alone, or
// sees one node only, leaves that to Karpenter.
func (c *settings) bringsBack() bool {
	return c.fleet() && c.release && !c.cordonOnly && !c.dryRun && asksKarpenter(*c)
}

// define declares the flags of c.mode, in the order in which --help shows them.
func (c *settings) define() []group {
	source, leader, evict, replacement := titled("Notices"), titled("Leader"), titled("Drain"), titled("Replacement")
	cluster, webhooks, operation := titled("Cluster"), titled("Webhook"), titled("Operation")

	switch c.mode {
	case modeIMDS:
		source.StringVar(&c.nodeName, "node-name", "", "the Node that this process runs on; also $NODE_NAME (required)")
		source.BoolVar(&c.drain, "drain", true,
			"drain the node too; with --drain=false, only mark it, for spot-handler drain or queue to drain")
		source.StringSliceVar(&c.watching, "watch", watchable, "`kinds` of notices to poll for; --rebalance says what to do on a recommendation")
	case modeQueue:
		source.StringVar(&c.queueURL, "queue-url", "", "URL of the SQS queue that EventBridge feeds (required)")
	}
	if c.fleet() {
		leader.BoolVar(&c.leaderElect, "leader-elect", true, "drain in one replica only; turn off only with a single replica")
		leader.StringVar(&c.podName, "pod-name", "",
			"this process's own pod, which is moved last; also $POD_NAME (default: the host name, in a pod)")
		leader.StringVar(&c.podNamespace, "pod-namespace", "",
			"its namespace, which the Lease "+leaseName+" is in; also $POD_NAMESPACE (default: the service "+
				"account's)")
		hide(leader, "leader-elect", "pod-name", "pod-namespace")
	}
	meaning(source, &c.nodes, "managed-nodes", "", parseLabels,
		"act only on nodes that match this label `selector`, such as team=blue; a node labelled "+
			interruption.IgnoreLabel+"=true is always left alone (default: on all)")
	oneOf(evict, (*string)(&c.policy.Strategy), "drain-strategy", string(plan.StrategySurge), names(plan.Strategies()),
		"surge: a Deployment's replacement pods come first, as many at a time as its maxSurge allows, and "+
			"all other pods are held; hold: a pod runs until the replacement node is Ready, or until its eviction "+
			"deadline; at-once: pods are evicted as soon as the replacement is requested")
	oneOf(evict, (*string)(&c.policy.Blocked), "blocked-pods", string(plan.Leave), names(plan.BlockedPolicies()),
		"what to do with a pod that its PDB still refuses at its eviction deadline: leave it on the node, "+
			"or delete it past the PDB; the annotation "+plan.BlockedAnnotation+" on the pod or its namespace "+
			"overrides it")
	evict.BoolVar(&c.cordonOnly, "cordon-only", false,
		"on every kind of interruption, only record, taint and cordon the node: move no pod, request no "+
			"replacement, terminate nothing")
	within(evict, &c.policy.Margin, "margin", 10*time.Second, bounds{0, 100 * time.Second, true, "0s to 100s, as EC2 gives two minutes in all"},
		"time kept free between the planned end of the last pod and EC2's deadline")
	oneOf(evict, (*string)(&c.rebalance), "rebalance", string(interruption.RebalanceReplace), names(interruption.RebalancePolicies()),
		"what to do on a rebalance recommendation: ignore, cordon, replace (cordon and drain once the "+
			"replacement is Ready, preferably another spot instance; there's no deadline), or fallback (like "+
			"replace, but with the replacement that an interruption notice would get); the annotation "+
			karpenter.RebalanceAnnotation+" on the node's NodePool overrides it")
	meaning(evict, &c.rebalances, "max-concurrent-rebalances", "10%", turns.ParseConcurrency,
		"how many nodes of a pool to replace at the same time on rebalance recommendations: a number, or a "+
			"percentage of the pool's nodes, rounded down, but at least 1; the others wait, and keep taking pods")
	within(evict, &c.rebalanceTTL, "rebalance-ttl", time.Hour, bounds{0, ever, true, "0s (never) or more"},
		"how long a node on a rebalance recommendation can go without a pod leaving before it returns to "+
			"service; 0 is never")

	within(evict, &c.scheduledLead, "scheduled-lead", 30*time.Minute, bounds{0, ever, true, "0s or more"},
		"how long before the window of a scheduled event (a stop, a retirement, a reboot) to drain the node; "+
			"until then it's only recorded")
	if c.mode == modeQueue {
		within(evict, &c.heartbeatUntil, "heartbeat-until", 0, bounds{30 * time.Second, 48 * time.Hour, true, "0s (none), or 30s to 48h, as AWS has it"},
			"how long to keep an Auto Scaling group waiting in all, with heartbeats, while its node is drained, "+
				"such as 1h; at most what AWS allows, at least the hook's timeout; 0 sends no heartbeats, so the "+
				"drain has the hook's timeout")
	}

	evict.BoolVar(&c.workloadNotices, "workload-notices", false,
		"notify pods with the annotation "+plan.NoticeAnnotation+" that their node is interrupted, with a POST "+
			"to the pod's own IP and with annotations")
	evict.StringSliceVar(&c.noticeNetworks, "notice-networks", nil,
		"`networks` in which to notify pods, such as 10.0.0.0/8; may be repeated. Pods on the host network are "+
			"notified only if this names theirs (default: all but loopback, link-local, multicast, Service and "+
			"AWS addresses)")

	oneOf(replacement, &c.provisioner, "provisioner", provisioner.Auto,
		[]string{provisioner.Auto, provisioner.Karpenter, provisioner.ASG, provisioner.Placeholder, provisioner.None},
		"what makes replacement nodes: karpenter, asg (Auto Scaling groups; queue mode only), placeholder, "+
			"none (drain only), or auto: karpenter for the nodes that Karpenter made, and for others the first "+
			"of karpenter, asg and placeholder that can")
	replacement.StringToStringVar(&c.fallback, "fallback-nodepool", nil,
		"which NodePool replaces the nodes of another, as `FROM=TO`, such as batch=batch-fallback; may be repeated; the "+
			"annotation spot-handler/fallback-nodepool on the NodePool overrides it (default: chosen for each "+
			"node)")
	oneOf(replacement, &c.replacement, "replacement", replacementAlways, []string{replacementAlways, replacementWhenNeeded},
		"when to request a replacement: always, or when-needed, if the pods don't fit on running nodes")
	within(replacement, &c.calm, "calm", karpenter.DefaultCalm, bounds{0, karpenter.LongestHold, true, "0s (off) to 24h"},
		"how long the on-demand replacement of a spot node stays, and how long EC2 must have been quiet about "+
			"an instance type in a zone, before pods go back to spot there; 0s leaves that to Karpenter; the "+
			"annotation "+karpenter.CalmAnnotation+" on the NodePool overrides it")
	within(replacement, &c.replacementTTL, "replacement-ttl", 10*time.Minute,
		bounds{30 * time.Second, ever, true, "0s (keep it) or at least 30s, as pods need some time to come"},
		"how long a replacement may be Ready and empty before it's deleted; 0 keeps it. Pods come within two "+
			"minutes of a notice, and EC2 bills by the second")
	meaning(replacement, &c.fallbacks, "fallback-selector", "", placeholder.ParseSelector,
		"label `selector` of the nodes to which pods move from nodes that Karpenter didn't make, such as "+
			"node-lifecycle=on-demand; low-priority placeholder pods make the autoscaler add such nodes "+
			"(default: no placeholder pods)")
	replacement.StringVar(&c.placeholderImage, "placeholder-image", "pause:3.10",
		"`image` of the placeholder pods; best is the pause image that the nodes have")
	hide(replacement, "placeholder-image")
	replacement.BoolVar(&c.release, "release-node", true,
		"terminate a drained node: with Karpenter, delete its NodeClaim; with an Auto Scaling group, "+
			"terminate the detached instance after a rebalance recommendation")

	cluster.StringVar(&c.kubeconfig, "kubeconfig", "",
		"kubeconfig `file` of the cluster; also $KUBECONFIG (default: the pod's service account)")

	webhooks.StringVar(&c.webhooks.Endpoint.URLFile, "webhook-url-file", "",
		"`file`, such as a mounted Secret's, with the URL to POST every notice and outcome to; the body suits "+
			"Slack's incoming webhooks; read again for each webhook")
	webhooks.StringVar(&c.webhooks.Endpoint.HeadersFile, "webhook-headers-file", "",
		"`file` with headers for it, one \"Name: value\" per line or one JSON object; read again for each "+
			"webhook (default: Content-Type: application/json)")
	webhooks.StringVar(&c.webhookTemplate, "webhook-template-file", "",
		"`file` with a Go template of the body, with sprig's functions, such as {\"text\": {{ .Text | toJson "+
			"}}} (default: what Slack takes)")
	meaning(webhooks, &c.webhooks.Proxy, "webhook-proxy", "", webhook.ParseProxy,
		"URL of a proxy for webhooks only (default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, as for everything "+
			"else)")

	operation.BoolVar(&c.dryRun, "dry-run", false, "change nothing, in the cluster or in the queue, and log what would be done")
	operation.StringVar(&c.httpAddr, "http-addr", ":8080", "address of /metrics, /healthz and /readyz")
	oneOf(operation, &c.logLevel, "log-level", zerolog.LevelInfoValue,
		[]string{zerolog.LevelDebugValue, zerolog.LevelInfoValue, zerolog.LevelWarnValue, zerolog.LevelErrorValue},
		"debug, info, warn or error")
	groups := []group{source, leader, evict, replacement, cluster, webhooks, operation}
	return slices.DeleteFunc(groups, func(g group) bool { return !g.HasFlags() })
}

// check reads what has to be seen together, and the files that are named, once. It names everything
// that is wrong.
func (c *settings) check() (problems []error) {
	bad := func(flag, format string, args ...any) {
		problems = append(problems, wrong(flag, fmt.Errorf(format, args...)))
	}
	for _, text := range c.noticeNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			bad("notice-networks", "%q: want networks such as 10.0.0.0/8", text)
		}
		c.networks = append(c.networks, network.Masked())
	}
	for from, to := range c.fallback {
		for _, pool := range []string{from, to} {
			if len(validation.IsDNS1123Subdomain(pool)) > 0 {
				bad("fallback-nodepool", "%q is no NodePool name: want FROM=TO, such as batch=batch-fallback", pool)
			}
		}
	}
	if c.podNamespace != "" && len(validation.IsDNS1123Label(c.podNamespace)) > 0 {
		bad("pod-namespace", "%q is no namespace name", c.podNamespace)
	}
	if c.placeholderImage == "" || strings.TrimSpace(c.placeholderImage) != c.placeholderImage {
		bad("placeholder-image", "%q is no image", c.placeholderImage)
	}
	if _, _, err := net.SplitHostPort(c.httpAddr); err != nil {
		bad("http-addr", "%q: want host:port, such as :8080", c.httpAddr)
	}
	if c.provisioner == provisioner.Placeholder && c.fallbacks.Empty() {
		bad("fallback-selector", "empty, so there is no node to ask for: want a label selector, such as node-lifecycle=on-demand")
	}
	c.checkWebhooks(bad)
	switch c.mode {
	case modeIMDS:
		if c.nodeName == "" {
			bad("node-name", "not set: give the Node's name, in a pod from the downward API (fieldRef spec.nodeName) as NODE_NAME")
		}
		var err error
		if c.kinds, err = kindsOf(c.watching); err != nil {
			bad("watch", "%w", err)
		}
	case modeQueue:
		if u, err := url.Parse(c.queueURL); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
			bad("queue-url", "%q: want the queue's URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler", c.queueURL)
		} else if strings.HasSuffix(u.Path, ".fifo") {
			// SQS hands out no further message of a group while one is being worked on, and EventBridge
			// sends all with one group.
			bad("queue-url", "%q: want a standard queue: a FIFO queue would hold all notices back behind one that waits for its node", c.queueURL)
		}
	}
	return problems
}

// checkWebhooks calls bad for what cannot be used.
func (c *settings) checkWebhooks(bad func(flag, format string, args ...any)) {
	file := c.webhooks.Endpoint
	if _, err := file.URL(); err != nil {
		bad("webhook-url-file", "%w", err)
	}
	header, err := file.Header()
	if err != nil {
		bad("webhook-headers-file", "%w", err)
	}
	if c.webhookTemplate != "" {
		text, err := os.ReadFile(c.webhookTemplate)
		if err == nil {
			c.webhooks.Template, err = webhook.ParseTemplate(string(text), header)
		}
		if err != nil {
			bad("webhook-template-file", "%w", err)
		}
	}
	for flag, given := range map[string]bool{
		"webhook-headers-file":  file.HeadersFile != "",
		"webhook-template-file": c.webhookTemplate != "",
		"webhook-proxy":         c.webhooks.Proxy != nil,
	} {
		if given && file.URLFile == "" {
			bad(flag, "of no use without --webhook-url-file")
		}
	}
}

// watchable are the values of --watch, and watched the kinds that they stand for.
var (
	watchable = []string{"spot", "lifecycle", "rebalance", "scheduled-events"}
	watched   = []interruption.Kind{
		interruption.SpotInterruption,
		interruption.InstanceTerminating,
		interruption.RebalanceRecommendation,
		interruption.ScheduledEvent,
	}
)

// kindsOf are the kinds of these values.
func kindsOf(names []string) (kinds []interruption.Kind, err error) {
	all := strings.Join(watchable, ", ")
	for _, name := range names {
		i := slices.Index(watchable, name)
		if i < 0 {
			return nil, fmt.Errorf("%q: want some of %s", name, all)
		}
		kinds = append(kinds, watched[i])
	}
	if len(kinds) == 0 {
		return nil, fmt.Errorf("empty, so nothing is polled: want some of %s", all)
	}
	return kinds, nil
}
