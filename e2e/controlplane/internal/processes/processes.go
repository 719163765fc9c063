// Package processes runs the processes of one control plane on the loopback interface, and makes sure that none of
// them outlives it.
//
// Tests panic, are interrupted and are killed. So the kernel kills the components when this process ends (see
// package tied), and the directory that they leave is removed by the next control plane that starts: whoever lives
// holds a lock on a file in its directory.
package processes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"spot-handler/e2e/internal/assets"
)

const (
	// startTimeout is many times what a start takes on a machine of two cores that is
	// busy with other tests.
	startTimeout = 2 * time.Minute

	// resetTimeout is many times what it takes to delete what one test has made. Whoever
	// asked starts another control plane when it has passed.
	resetTimeout = time.Minute

	// attempts to start: another process can take a free port before the component
	// listens on it. That happens rarely, and hardly ever twice.
	attempts = 3
)

// Options say what to start.
type Options struct {
	Karpenter bool
	Audit     bool          // write an audit log
	Endpoints bool          // write the addresses of Services
	Dir       string        // keep logs here; empty: a temporary directory
	Heartbeat time.Duration // of nodes
	Reusable  bool          // it may be Reset
	Progress  io.Writer     // receives what the first build says
}

// Running is a control plane that runs. Reset must not be called concurrently.
type Running struct {
	plan      plan
	karpenter bool
	dir       *directory
	group     *group
	api       *api
	initial   inventory

	stopping sync.Once
	ended    error
}

// Start starts a control plane, and returns when all of it serves. The context limits only the start.
func Start(ctx context.Context, options Options) (*Running, error) {
	removeStale(time.Now())
	programs, err := assets.Ensure(ctx, assets.ControlPlane, options.Progress)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		r, err := start(ctx, programs, options)
		if attempt == attempts || err == nil || !strings.Contains(err.Error(), "address already in use") {
			return r, err
		}
	}
}

func start(ctx context.Context, programs assets.Set, options Options) (*Running, error) {
	dir, err := openDirectory(options.Dir)
	if err != nil {
		return nil, err
	}
	r := &Running{karpenter: options.Karpenter, dir: dir, group: newGroup(dir.path)}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not within %s", startTimeout))
	defer cancel()
	defer context.AfterFunc(r.group.ctx, cancel)()
	if err = r.prepare(ctx, programs, options); err == nil {
		err = r.bringUp(ctx, programs)
	}
	if err == nil && options.Reusable {
		// A resource that has just been defined may not be served yet.
		err = poll(ctx, "the first inventory", func() (err error) { r.initial, err = r.api.inventory(ctx); return err })
	}
	if err != nil {
		// The death of a component counts for more than the error that followed from it.
		if death := r.Stop(); death != nil {
			return nil, death
		}
		return nil, err
	}
	return r, nil
}

// prepare writes what the components read.
func (r *Running) prepare(ctx context.Context, programs assets.Set, options Options) error {
	r.plan = plan{
		programs:  programs,
		dir:       r.dir.path,
		audit:     options.Audit,
		heartbeat: options.Heartbeat,
	}
	without := unneeded
	if !options.Endpoints {
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
	r.api, err = newAPI(r.Kubeconfig())
	return err
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
		if err := r.startKarpenter(ctx); err != nil {
			return err
		}
	}
	if err := waitForHealth(ctx, urlOf("https", r.plan.ports.scheduler)+"/readyz"); err != nil {
		return err
	}
	if err := waitForHealth(ctx, urlOf("http", r.plan.ports.kwok)+"/healthz"); err != nil {
		return err
	}
	// The controller manager has no port; what its controllers make shows that they run.
	// No pod can be created before that.
	return r.api.waitFor(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
}

func (r *Running) startKarpenter(ctx context.Context) error {
	if err := r.group.start(r.plan.karpenter()); err != nil {
		return err
	}
	return waitForHealth(ctx, urlOf("http", r.plan.ports.karpenterHealth)+"/readyz")
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
		return r.startKarpenter(ctx)
	}
	return nil
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

// Dir has a <component>.log each.
func (r *Running) Dir() string { return r.plan.dir }

// Kubeconfig is an administrator's.
func (r *Running) Kubeconfig() string { return r.plan.creds.kubeconfig(admin) }

// AuditLog is the path of the audit log; empty if there is none.
func (r *Running) AuditLog() string {
	if !r.plan.audit {
		return ""
	}
	return r.plan.file(auditLogName)
}

// Kubectl is the path of the newest one.
func (r *Running) Kubectl() string { return r.plan.programs.Path("kubectl") }

// KarpenterMetrics is a URL; empty without Karpenter.
func (r *Running) KarpenterMetrics() string {
	if !r.karpenter {
		return ""
	}
	return urlOf("http", r.plan.ports.karpenterMetrics) + "/metrics"
}

// Pids are the ids of the components' processes.
func (r *Running) Pids() []int { return r.group.pids() }
