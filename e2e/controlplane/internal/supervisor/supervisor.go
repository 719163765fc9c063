package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
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
	Progress  io.Writer     // receives what the first build says

	// Reset has the control plane emptied, to be as it was when ready was called for the
	// first time. It is called again then. Nil: this is never asked for.
	Reset <-chan struct{}
}

// Info is what a client needs to know, as one line of JSON.
type Info struct {
	Dir              string `json:"dir"` // with a <component>.log each
	Server           string `json:"server"`
	Kubeconfig       string `json:"kubeconfig"`
	Kubectl          string `json:"kubectl"`
	AuditLog         string `json:"auditLog,omitempty"`
	KarpenterMetrics string `json:"karpenterMetrics,omitempty"` // URL
	Components       []int  `json:"components"`                 // process ids
}

// Supervise starts a control plane, calls ready once it serves, and runs it until ctx is
// done or a component ends, which is an error. When it returns, everything is gone. It
// may be called several times concurrently, each time for a control plane of its own.
func Supervise(ctx context.Context, options Options, ready func(Info) error) error {
	removeStale(time.Now())
	programs, err := assets.Ensure(ctx, options.Progress)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err := supervise(ctx, programs, options, ready)
		if attempt == attempts || err == nil || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
	}
}

func supervise(ctx context.Context, programs assets.Set, options Options, ready func(Info) error) (err error) {
	dir, err := openDirectory(options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.remove()) }()

	p := plan{programs: programs, dir: dir.path, audit: options.Audit, heartbeat: options.Heartbeat}
	without := unneeded
	if !options.Endpoints {
		without = slices.Concat(unneeded, ofEndpoints)
	}
	if p.controllers, err = needed(ctx, programs.Path("kube-controller-manager"), without); err != nil {
		return err
	}
	if p.ports, err = freePorts(); err != nil {
		return err
	}
	if p.creds, err = writeCredentials(p.file(credentialsName), urlOf("https", p.ports.apiserver)); err != nil {
		return err
	}
	for name, content := range map[string][]byte{stagesName: stages, auditPolicyName: auditPolicy} {
		if err := os.WriteFile(p.file(name), content, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}

	g := newGroup(ctx, dir.path)
	defer g.killAll()
	startCtx, cancel := context.WithTimeoutCause(g.ctx, startTimeout, fmt.Errorf("not within %s", startTimeout))
	defer cancel()
	if err := bringUp(startCtx, g, p, options.Karpenter); err != nil {
		return g.explain(ctx, err)
	}
	api := newAPI(p.creds)
	var initial inventory
	if options.Reset != nil {
		// A resource that has just been defined may not be served yet.
		if err := poll(startCtx, "the first inventory", func() (err error) { initial, err = api.inventory(startCtx); return err }); err != nil {
			return g.explain(ctx, err)
		}
	}
	for {
		if err := ready(g.info(p, options)); err != nil {
			return fmt.Errorf("tell that the control plane is ready: %w", err)
		}
		select {
		case <-g.ctx.Done():
			return g.explain(ctx, nil)
		case <-options.Reset:
		}
		if err := reset(g, p, api, initial, options.Karpenter); err != nil {
			return g.explain(ctx, err)
		}
	}
}

// reset empties the control plane. Karpenter starts again: a node that it has promised to
// launch is in its memory only, and would come to whoever is next.
func reset(g *group, p plan, api *api, initial inventory, karpenter bool) error {
	ctx, cancel := context.WithTimeoutCause(g.ctx, resetTimeout, fmt.Errorf("not within %s", resetTimeout))
	defer cancel()
	if karpenter {
		g.end("karpenter")
	}
	if err := api.empty(ctx, initial); err != nil {
		return fmt.Errorf("empty the control plane: %w", err)
	}
	if !karpenter {
		return nil
	}
	if err := g.start(p.karpenter()); err != nil {
		return err
	}
	return waitForHealth(ctx, urlOf("http", p.ports.karpenterHealth)+"/readyz")
}

// bringUp starts the components in the order in which they need each other. The apiserver
// waits for etcd by itself.
func bringUp(ctx context.Context, g *group, p plan, karpenter bool) error {
	for _, c := range []command{p.etcd(), p.apiserver()} {
		if err := g.start(c); err != nil {
			return err
		}
	}
	api := newAPI(p.creds)
	if err := api.waitFor(ctx, "/readyz"); err != nil {
		return err
	}
	for _, c := range []command{p.controllerManager(), p.scheduler(), p.kwok()} {
		if err := g.start(c); err != nil {
			return err
		}
	}
	if karpenter {
		if err := api.createCRDs(ctx, p.programs.CRDs); err != nil {
			return err
		}
		if err := g.start(p.karpenter()); err != nil {
			return err
		}
		if err := waitForHealth(ctx, urlOf("http", p.ports.karpenterHealth)+"/readyz"); err != nil {
			return err
		}
	}
	if err := waitForHealth(ctx, urlOf("https", p.ports.scheduler)+"/readyz"); err != nil {
		return err
	}
	if err := waitForHealth(ctx, urlOf("http", p.ports.kwok)+"/healthz"); err != nil {
		return err
	}
	// The controller manager has no port; what its controllers make shows that they run.
	// No pod can be created before that.
	return api.waitFor(ctx, "/api/v1/namespaces/default/serviceaccounts/default")
}

// group holds the processes of one control plane.
type group struct {
	ctx       context.Context // done when the parent is, or when a process ends
	fail      context.CancelCauseFunc
	dir       string
	forker    *forker
	processes []*process
}

// errDied marks that a component died, as opposed to the parent being done.
var errDied = errors.New("a component died")

func newGroup(ctx context.Context, dir string) *group {
	g := &group{dir: dir, forker: newForker()}
	g.ctx, g.fail = context.WithCancelCause(ctx)
	return g
}

func (g *group) start(c command) error {
	p, err := g.forker.start(g.dir, c)
	if err != nil {
		return err
	}
	g.processes = append(g.processes, p)
	go func() {
		<-p.exited
		if p.ending.Load() {
			return
		}
		// Has no effect once the parent is done: nobody hears of deaths that we cause.
		g.fail(fmt.Errorf("%w: %w", errDied, p.death()))
	}()
	return nil
}

// end ends one process, of which nobody is told.
func (g *group) end(name string) {
	for i, p := range g.processes {
		if p.name == name {
			p.ending.Store(true)
			p.kill()
			g.processes = slices.Delete(g.processes, i, i+1)
			return
		}
	}
}

// explain is the reason for the end: a death counts for more than the error that followed
// from it, and an end that somebody requested is no error.
func (g *group) explain(parent context.Context, err error) error {
	if cause := context.Cause(g.ctx); errors.Is(cause, errDied) {
		return cause
	}
	if parent.Err() != nil {
		return nil
	}
	return err
}

func (g *group) killAll() {
	g.fail(nil)
	for i := len(g.processes) - 1; i >= 0; i-- {
		g.processes[i].kill()
	}
	g.forker.close()
}

func (g *group) info(p plan, options Options) Info {
	info := Info{
		Dir:        p.dir,
		Server:     p.creds.server,
		Kubeconfig: p.creds.kubeconfig(admin),
		Kubectl:    p.programs.Path("kubectl"),
	}
	if options.Audit {
		info.AuditLog = p.file(auditLogName)
	}
	if options.Karpenter {
		info.KarpenterMetrics = urlOf("http", p.ports.karpenterMetrics) + "/metrics"
	}
	for _, process := range g.processes {
		info.Components = append(info.Components, process.cmd.Process.Pid)
	}
	return info
}
