package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"spot-handler/e2e/controlplane/internal/processes"
)

// Options say what runs, and how.
type Options struct {
	// Karpenter runs Karpenter and installs its CRDs.
	Karpenter bool

	// Audit makes the apiserver log every request, see Cluster.AuditLog.
	Audit bool

	// NoEndpoints leaves out the controllers that write the addresses of Services.
	NoEndpoints bool

	// Dir is the directory that keeps the components' logs after the end. By default they
	// are in a temporary one.
	Dir string

	// Heartbeat is how often nodes renew their lease; 10 s by default, as kubelets do.
	// The control plane notices a stopped node after five of them. A longer one is
	// cheaper for thousands of nodes.
	Heartbeat time.Duration

	// Reusable lets Reset empty the cluster.
	Reusable bool

	// Log receives what is being built; os.Stderr by default.
	Log io.Writer
}

// Cluster is a running control plane.
type Cluster struct {
	// Kubeconfig is the path of an administrator's kubeconfig, Kubectl that of the newest
	// kubectl.
	Kubeconfig, Kubectl string

	// Dir holds <component>.log of each component, for as long as the cluster runs.
	Dir string

	// AuditLog is the path of the audit log, with one JSON object of kind Event
	// (audit.k8s.io/v1) on each line; empty without Options.Audit. It holds all requests
	// except those of kwok, those about nodes' leases, and those about Events, unless
	// service accounts in the namespace spot-handler make them. Evictions and deletions
	// of pods come with their bodies. user.username is the component, or admin for the
	// holders of Kubeconfig; userAgent distinguishes those. A line is written before its
	// request is answered.
	AuditLog string

	// KarpenterMetrics is the URL of Karpenter's metrics; empty without Karpenter.
	KarpenterMetrics string

	// Processes are the ids of the components' processes, to measure them.
	Processes []int

	// Client and Dynamic have an administrator's rights and no client-side rate limit.
	Client  kubernetes.Interface
	Dynamic dynamic.Interface

	config *rest.Config

	auditLog  string // AuditLog, also for a borrower that did not ask for it
	auditFrom int64  // where its part begins

	bareNodes atomic.Int64 // that were ever created

	running *processes.Running
}

// Start starts a control plane, and returns when all of it is ready. The context limits
// only the start. The caller must Stop it eventually; if the caller dies first, the
// cluster still ends.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if options.Log == nil {
		options.Log = os.Stderr
	}
	if options.Heartbeat == 0 {
		options.Heartbeat = 10 * time.Second
	}
	running, err := processes.Start(ctx, processes.Options{
		Karpenter: options.Karpenter,
		Audit:     options.Audit,
		Endpoints: !options.NoEndpoints,
		Dir:       options.Dir,
		Heartbeat: options.Heartbeat,
		Reusable:  options.Reusable,
		Progress:  options.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("start a control plane: %w", err)
	}
	c := &Cluster{
		running:          running,
		Kubeconfig:       running.Kubeconfig(),
		Kubectl:          running.Kubectl(),
		Dir:              running.Dir(),
		AuditLog:         running.AuditLog(),
		auditLog:         running.AuditLog(),
		KarpenterMetrics: running.KarpenterMetrics(),
		Processes:        running.Pids(),
	}
	if err := c.connect(); err != nil {
		_ = c.Stop()
		return nil, err
	}
	return c, nil
}

// Reset deletes all objects that were not there when the cluster was started, starts
// Karpenter again, and returns when all is ready. AuditText starts empty again. The cluster must
// be Reusable, and must be stopped after an error.
func (c *Cluster) Reset(ctx context.Context) error {
	if err := c.running.Reset(ctx); err != nil {
		return fmt.Errorf("reset the control plane: %w", err)
	}
	c.Processes = c.running.Pids()
	if file, err := os.Stat(c.auditLog); err == nil {
		c.auditFrom = file.Size()
	}
	return nil
}

// AuditText is what the audit log has of this cluster since its start, or since it was
// Reset, without so many bytes that the caller knows: complete lines.
func (c *Cluster) AuditText(known int64) ([]byte, error) {
	file, err := os.Open(c.AuditLog)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(c.auditFrom+known, io.SeekStart); err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return text[:bytes.LastIndexByte(text, '\n')+1], nil
}

func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit: we measure the server and the program under test
	c.config = config
	// Protobuf, for the built-in types only, spares the processors, which the control
	// plane shares with what we measure.
	if c.Client, err = kubernetes.NewForConfig(protobuf(config)); err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	if c.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return fmt.Errorf("make a dynamic client: %w", err)
	}
	return nil
}

func protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

// RESTConfig is for the caller's own clients: an administrator's rights, no client-side
// rate limit. Each call returns a new one.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Done is closed when the cluster has been stopped, or a component has died.
func (c *Cluster) Done() <-chan struct{} { return c.running.Done() }

// Stop ends the cluster and waits until nothing is left of it. It returns an error if the
// cluster had ended by itself, or did not end cleanly.
func (c *Cluster) Stop() error {
	if err := c.running.Stop(); err != nil {
		return fmt.Errorf("run the control plane: %w", err)
	}
	return nil
}
