// Package processes runs the processes of one control plane on the loopback interface, and makes sure that none of
// them outlives it.
//
// Tests panic, are interrupted and are killed. So the kernel kills the components when this process ends (see
// package tied), and the directory that they leave is removed by the next control plane that starts: whoever lives
// holds a lock on a file in its directory.
package processes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"spot-handler/e2e/internal/assets"
)

const (
	// startTimeout is many times what a start takes on a machine of two cores that is
	// busy with other tests.
	startTimeout = 2 * time.Minute

	// resetTimeout is many times what it takes to delete what one test has made. Whoever
	// asked starts another control plane when it has passed.
	resetTimeout = time.Minute
)

// Options say what runs, and how.
type Options struct {
	// Karpenter runs Karpenter and installs its CRDs. Gates are its feature gates that are not as by default.
	Karpenter bool
	Gates     string

	// Audit makes the apiserver log every request, see Running.AuditLog.
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

	// Reusable lets Reset empty the control plane.
	Reusable bool

	// Log receives what is being built; os.Stderr by default.
	Log io.Writer
}

// Running is a control plane that runs. Reset must not be called concurrently.
type Running struct {
	// Kubeconfig is the path of an administrator's kubeconfig, Kubectl that of the newest
	// kubectl.
	Kubeconfig, Kubectl string

	// Dir holds <component>.log of each component, for as long as the control plane runs.
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

	api       *api
	plan      plan
	karpenter bool
	dir       *directory
	group     *group
	initial   inventory

	stopping sync.Once
	ended    error
}

// Start starts a control plane, and returns when all of it serves. The context limits
// only the start. The caller must Stop it eventually; on Linux it also ends with this process.
func Start(ctx context.Context, options Options) (*Running, error) {
	if options.Log == nil {
		options.Log = os.Stderr
	}
	options.Heartbeat = cmp.Or(options.Heartbeat, 10*time.Second)
	removeStale(time.Now())
	programs, err := assets.Ensure(ctx, assets.ControlPlane, options.Log)
	if err != nil {
		return nil, err
	}
	dir, err := openDirectory(options.Dir)
	if err != nil {
		return nil, err
	}
	r := &Running{Dir: dir.path, Kubectl: programs.Path("kubectl"), karpenter: options.Karpenter, dir: dir, group: newGroup(dir.path)}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not within %s", startTimeout))
	defer cancel()
	defer context.AfterFunc(r.group.ctx, cancel)()
	if err = r.prepare(ctx, programs, options); err == nil {
		err = r.bringUp(ctx, programs)
	}
	if err == nil && options.Reusable {
		// The API server might not serve a resource yet that has just been defined.
		err = poll(ctx, "the first inventory", func(context.Context) (err error) {
			r.initial, err = r.api.inventory(ctx)
			return err
		})
	}
	if err != nil {
		// The death of a component counts for more than the error that followed from it.
		if death := r.Stop(); death != nil {
			return nil, death
		}
		return nil, err
	}
	r.Processes = r.group.pids()
	return r, nil
}

// prepare writes what the components read.
func (r *Running) prepare(ctx context.Context, programs assets.Set, options Options) error {
	r.plan = plan{
		programs:  programs,
		dir:       r.dir.path,
		audit:     options.Audit,
		heartbeat: options.Heartbeat,
		gates:     options.Gates,
	}
	without := unneeded
	if options.NoEndpoints {
		without = slices.Concat(unneeded, ofEndpoints)
	}
	var err error
	if r.plan.controllers, err = needed(ctx, programs.Path("kube-controller-manager"), without); err != nil {
		return err
	}
	if r.plan.ports, err = freePorts(); err != nil {
		return err
	}
	if r.plan.creds, err = writeCredentials(r.plan.file(credentialsName), urlOf("https", r.plan.ports.apiserver)); err != nil {
		return err
	}
	for name, content := range map[string][]byte{stagesName: stages, auditPolicyName: auditPolicy} {
		if err := os.WriteFile(r.plan.file(name), content, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	r.Kubeconfig = r.plan.creds.kubeconfig(admin)
	if options.Audit {
		r.AuditLog = r.plan.file(auditLogName)
	}
	if options.Karpenter {
		r.KarpenterMetrics = urlOf("http", r.plan.ports.karpenterMetrics) + "/metrics"
	}
	if r.api, err = newAPI(r.Kubeconfig); err != nil {
		return err
	}
	r.Client, r.Dynamic = r.api, r.api.dynamic
	return nil
}

// bringUp starts the components in the order in which they need each other. The apiserver
// waits for etcd by itself.
func (r *Running) bringUp(ctx context.Context, programs assets.Set) error {
	for _, c := range []command{r.plan.etcd(), r.plan.apiserver()} {
		if err := r.group.start(c); err != nil {
			return err
		}
	}
	if err := r.api.waitFor(ctx, "/readyz"); err != nil {
		return err
	}
	for _, c := range []command{r.plan.controllerManager(), r.plan.scheduler(), r.plan.kwok()} {
		if err := r.group.start(c); err != nil {
			return err
		}
	}
	if r.karpenter {
		if err := r.api.createCRDs(ctx, programs.CRDs); err != nil {
			return err
		}
		if err := r.group.start(r.plan.karpenter()); err != nil {
			return err
		}
	}
	if err := r.group.waitHealthy(ctx); err != nil {
		return err
	}
	// The controller manager has no port; what its controllers make shows that they run.
	// No pod can be created before that.
	return r.api.waitFor(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
}

// Reset deletes all objects that were not there when the control plane was ready, and
// returns when all of it serves. Karpenter starts again: a node that it has promised to
// launch is in its memory only, and would come to whoever is next.
func (r *Running) Reset(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, resetTimeout, fmt.Errorf("not within %s", resetTimeout))
	defer cancel()
	defer context.AfterFunc(r.group.ctx, cancel)()
	if r.karpenter {
		r.group.end("karpenter")
	}
	if err := r.api.empty(ctx, r.initial); err != nil {
		return fmt.Errorf("empty the control plane: %w", err)
	}
	if r.karpenter {
		if err := r.group.start(r.plan.karpenter()); err != nil {
			return err
		}
	}
	r.Processes = r.group.pids()
	return r.group.waitHealthy(ctx)
}

// Stop ends the control plane, and returns when nothing is left of it. The error is why it had ended by itself.
// Later calls return the same.
func (r *Running) Stop() error {
	r.stopping.Do(func() {
		r.ended = errors.Join(r.group.stop(), r.dir.remove())
	})
	return r.ended
}

// Done is closed when the control plane has been stopped, or a component has died.
func (r *Running) Done() <-chan struct{} { return r.group.ctx.Done() }

// Freeze stops one of the components, such as kube-apiserver, until thaw is called: it answers
// nothing, and its connections stay open.
func (r *Running) Freeze(component string) (thaw func(), err error) {
	for _, p := range r.group.processes {
		if p.name != component {
			continue
		}
		if err := syscall.Kill(p.Pid(), syscall.SIGSTOP); err != nil {
			return nil, fmt.Errorf("freeze %s: %w", component, err)
		}
		return func() { _ = syscall.Kill(p.Pid(), syscall.SIGCONT) }, nil
	}
	return nil, fmt.Errorf("freeze %s: no process of the control plane is it", component)
}

// RESTConfig is for the caller's own clients: an administrator's rights, no client-side
// rate limit. Each call returns a new one.
func (r *Running) RESTConfig() *rest.Config { return rest.CopyConfig(r.api.config) }
