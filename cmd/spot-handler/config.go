package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"
	"k8s.io/apimachinery/pkg/util/validation"

	"spot-handler/drain"
	"spot-handler/handler"
	"spot-handler/handler/provisioner"
)

// The modes, which are the commands.
const (
	modeIMDS  = "imds"
	modeQueue = "queue"
)

// config is what the operator has asked for. Flags of the other mode are zero.
type config struct {
	mode string
	common
	imdsFlags
	queueFlags
}

// common are the flags of both modes.
type common struct {
	Kubeconfig string `help:"Kubeconfig file of the cluster. Without it: the pod's service account." env:"SPOT_HANDLER_KUBECONFIG,KUBECONFIG" placeholder:"FILE" group:"cluster"`
	QPS        int    `name:"kube-api-qps" help:"Limit of requests per second to the API server; 0 leaves the pace to the server's priority and fairness, which is what makes a burst of notices fast." default:"0" group:"cluster"`
	Burst      int    `name:"kube-api-burst" help:"Requests that may exceed --kube-api-qps for a moment." default:"100" group:"cluster"`

	Provisioner      string            `help:"What makes replacement nodes: auto (by what made the interrupted one), karpenter, or none (drain only)." default:"auto" group:"replacement"`
	FallbackNodePool map[string]string `name:"fallback-nodepool" help:"NodePool that replaces the nodes of another, such as batch=batch-fallback; may be repeated. The annotation spot-handler/fallback-nodepool on the NodePool goes before it." placeholder:"FROM=TO" group:"replacement"`
	ReleaseNode      bool              `help:"Hand a drained node back to what made it: with Karpenter, delete its NodeClaim." default:"true" negatable:"" group:"replacement"`

	DrainStrategy string        `help:"hold: a pod runs on until the replacement is ready or its latest safe start has come. at-once: pods are evicted as soon as the replacement is requested." default:"hold" group:"drain"`
	Margin        time.Duration `help:"Time kept free between the planned end of the last pod and EC2's deadline." default:"10s" group:"drain"`
	Rebalance     string        `help:"What to do on a rebalance recommendation: ignore, cordon, or replace (drain once the replacement is ready; there is no deadline)." default:"replace" group:"drain"`

	DryRun    bool   `help:"Change nothing, neither in the cluster nor in the queue; log what would be done." group:"operation"`
	HTTPAddr  string `help:"Address of /metrics, /healthz and /readyz." default:":8080" group:"operation"`
	LogLevel  string `help:"debug, info, warn or error." default:"info" group:"operation"`
	LogFormat string `help:"json, or console for people." default:"json" group:"operation"`
}

// imdsFlags are the flags of imds mode.
type imdsFlags struct {
	NodeName     string        `help:"The Node that this process runs on." placeholder:"NAME" env:"SPOT_HANDLER_NODE_NAME,NODE_NAME" group:"source"`
	PollInterval time.Duration `help:"Time between two looks at the metadata service. AWS advises 5s or less." default:"2s" group:"source"`
	Drain        bool          `help:"Drain the node too. With --no-drain it is only marked, and the queue deployment drains it." default:"true" negatable:"" group:"source"`
}

// queueFlags are the flags of queue mode.
type queueFlags struct {
	QueueURL       string `help:"URL of the SQS queue that EventBridge feeds." placeholder:"URL" group:"source"`
	Receivers      int    `help:"Receive calls kept open at the same time; each takes up to 10 messages." default:"4" group:"source"`
	LeaderElect    bool   `help:"Drain in one replica only; all replicas accept notices. Turn off only with a single replica." default:"true" negatable:"" group:"source"`
	LeaseNamespace string `help:"Namespace of the Lease called spot-handler. Without it: the pod's own, else kube-system." placeholder:"NAME" group:"source"`
}

// parse reads flags and variables. done means that there is nothing left to do, as
// after --help. The error wraps errUsage and names all problems.
func parse(args []string, stdout io.Writer) (cfg config, done bool, err error) {
	var cli struct {
		Version kong.VersionFlag `help:"Print the version and exit." env:"-"`
		IMDS    struct {
			imdsFlags `embed:""`
			common    `embed:""`
		} `cmd:"" name:"imds" help:"Watch this node's instance metadata service, and drain this node when EC2 takes it. Runs as a DaemonSet on spot nodes."`
		Queue struct {
			queueFlags `embed:""`
			common     `embed:""`
		} `cmd:"" name:"queue" help:"Consume the SQS queue that EventBridge feeds, and drain every node that EC2 takes. Runs as a Deployment."`
	}
	parser, err := kong.New(&cli,
		kong.Name("spot-handler"),
		kong.Description("Gets workloads off spot instances before EC2 takes them: cordon, replacement capacity from the fallback pool, drain within the deadline.\n\nEvery flag can be given as a variable: --queue-url is SPOT_HANDLER_QUEUE_URL."),
		kong.DefaultEnvars("SPOT_HANDLER"),
		kong.Vars{"version": versionText()},
		kong.Writers(stdout, stdout),
		kong.Exit(func(int) { done = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "source", Title: "Source of notices:"},
			{Key: "drain", Title: "Drain:"},
			{Key: "replacement", Title: "Replacement:"},
			{Key: "cluster", Title: "Cluster:"},
			{Key: "operation", Title: "Operation:"},
		}),
	)
	if err != nil {
		return config{}, false, fmt.Errorf("define flags: %w", err)
	}
	parsed, err := parser.Parse(args)
	if done {
		return config{}, true, nil
	}
	if err != nil {
		return config{}, false, fmt.Errorf("%w: %w; see spot-handler --help", errUsage, err)
	}
	cfg.mode = strings.Fields(parsed.Command())[0]
	switch cfg.mode {
	case modeIMDS:
		cfg.common, cfg.imdsFlags = cli.IMDS.common, cli.IMDS.imdsFlags
	case modeQueue:
		cfg.common, cfg.queueFlags = cli.Queue.common, cli.Queue.queueFlags
	}
	if err := cfg.validate(); err != nil {
		return config{}, false, fmt.Errorf("%w:\n%w", errUsage, err)
	}
	return cfg, false, nil
}

// validate names everything that is wrong at once.
func (c config) validate() error {
	var problems []error
	bad := func(flag, format string, args ...any) {
		variable := "SPOT_HANDLER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		problems = append(problems, fmt.Errorf("--%s (%s): %s", flag, variable, fmt.Sprintf(format, args...)))
	}
	oneOf(bad, "provisioner", c.Provisioner, []string{provisioner.Auto, provisioner.Karpenter, provisioner.None})
	oneOf(bad, "drain-strategy", c.DrainStrategy, drain.Strategies())
	oneOf(bad, "rebalance", c.Rebalance, handler.RebalancePolicies())
	oneOf(bad, "log-format", c.LogFormat, []string{logJSON, logConsole})
	oneOf(bad, "log-level", c.LogLevel, logLevels)
	for from, to := range c.FallbackNodePool {
		for _, pool := range []string{from, to} {
			if len(validation.IsDNS1123Subdomain(pool)) > 0 {
				bad("fallback-nodepool", "%q is no NodePool name: want FROM=TO, such as batch=batch-fallback", pool)
			}
		}
	}
	if c.Margin < 0 || c.Margin > 100*time.Second {
		bad("margin", "%s: want 0s to 100s, as EC2 gives two minutes in all", c.Margin)
	}
	if c.QPS < 0 {
		bad("kube-api-qps", "%d: want 0 (no limit) or more", c.QPS)
	}
	if c.Burst < 1 {
		bad("kube-api-burst", "%d: want at least 1", c.Burst)
	}
	if _, _, err := net.SplitHostPort(c.HTTPAddr); err != nil {
		bad("http-addr", "%q: want host:port, such as :8080", c.HTTPAddr)
	}
	switch c.mode {
	case modeIMDS:
		if c.NodeName == "" {
			bad("node-name", "not set: give the Node's name, in a pod from the downward API (fieldRef spec.nodeName) as NODE_NAME")
		}
		if c.PollInterval < 500*time.Millisecond || c.PollInterval > 30*time.Second {
			bad("poll-interval", "%s: want 500ms to 30s", c.PollInterval)
		}
	case modeQueue:
		if u, err := url.Parse(c.QueueURL); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
			bad("queue-url", "%q: want the queue's URL, such as https://sqs.eu-west-1.amazonaws.com/123456789012/spot-handler", c.QueueURL)
		}
		if c.Receivers < 1 || c.Receivers > 64 {
			bad("receivers", "%d: want 1 to 64", c.Receivers)
		}
		if c.LeaseNamespace != "" && len(validation.IsDNS1123Label(c.LeaseNamespace)) > 0 {
			bad("lease-namespace", "%q is no namespace name", c.LeaseNamespace)
		}
	}
	return errors.Join(problems...)
}

func oneOf[T ~string](bad func(flag, format string, args ...any), flag, value string, allowed []T) {
	if slices.Contains(allowed, T(value)) {
		return
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	bad(flag, "%q: want one of %s", value, strings.Join(names, ", "))
}

// logLevels are the levels that --log-level takes.
var logLevels = []string{
	zerolog.LevelDebugValue, zerolog.LevelInfoValue, zerolog.LevelWarnValue, zerolog.LevelErrorValue,
}
