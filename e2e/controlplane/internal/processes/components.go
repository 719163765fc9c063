package processes

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"time"

	"spot-handler/e2e/internal/assets"
	"spot-handler/e2e/internal/loopback"
)

// The rules by which kwok plays the kubelets.
//
//go:embed stages.yaml
var stages []byte

// What the apiserver writes to its audit log.
//
//go:embed audit-policy.yaml
var auditPolicy []byte

const (
	stagesName      = "stages.yaml"
	auditPolicyName = "audit-policy.yaml"
	auditLogName    = "audit.log"

	// unthrottled is the components' client-side rate limit: when hundreds of pods move
	// at once, a limit of theirs would show up as ours in the measurements.
	unthrottled = "5000"
)

// ports are all on the loopback interface.
type ports struct {
	etcd, etcdPeer, apiserver, scheduler, kwok, karpenterHealth, karpenterMetrics string
}

// freePorts finds ports for the components.
func freePorts() (p ports, err error) {
	for _, port := range []*string{&p.etcd, &p.etcdPeer, &p.apiserver, &p.scheduler, &p.kwok, &p.karpenterHealth, &p.karpenterMetrics} {
		address, err := loopback.Address()
		if err != nil {
			return p, err
		}
		_, *port, _ = net.SplitHostPort(address)
	}
	return p, nil
}

// plan knows how to start each component.
type plan struct {
	programs    assets.Set
	dir         string
	ports       ports
	creds       credentials
	audit       bool
	heartbeat   time.Duration
	controllers string // of the controller manager
	gates       string // of Karpenter
}

func (p plan) file(name string) string { return filepath.Join(p.dir, name) }

func urlOf(scheme, port string) string { return scheme + "://127.0.0.1:" + port }

// environment keeps a control plane from taking all processors of a large machine:
// several run in parallel, and Go sizes its pools by processors. Garbage is collected
// seldom, unless GOGC says otherwise: a fifth of an API server's processor time is worth
// more here than some memory.
func environment() []string {
	return []string{"GOMAXPROCS=" + strconv.Itoa(min(4, runtime.NumCPU())), "TZ=UTC", "GOGC=" + cmp.Or(os.Getenv("GOGC"), "400")}
}

func (p plan) etcd() command {
	client, peer := urlOf("http", p.ports.etcd), urlOf("http", p.ports.etcdPeer)
	return command{name: "etcd", path: p.programs.Path("etcd"), env: environment(), args: []string{
		"--data-dir=" + p.file("etcd"),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=default=" + peer,
		"--unsafe-no-fsync",                // nothing outlives the process anyway
		"--quota-backend-bytes=8589934592", // the most that etcd advises; some tests write large objects
		"--log-level=warn",
	}}
}

func (p plan) apiserver() command {
	args := []string{
		"--etcd-servers=" + urlOf("http", p.ports.etcd),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + p.ports.apiserver,
		"--endpoint-reconciler-type=none", // refuses a loopback address otherwise
		"--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file=" + p.creds.certificate(),
		"--tls-private-key-file=" + p.creds.key(),
		"--service-account-key-file=" + p.creds.key(),
		"--service-account-signing-key-file=" + p.creds.key(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--token-auth-file=" + p.creds.tokens(),
		"--authorization-mode=RBAC",
		"--allow-privileged=true", // DaemonSets of real clusters are
		"--profiling=false",
		// Nobody here writes such policies, for which the OpenAPI of all groups is read and put
		// together again every 5 s: a tenth of what a start takes.
		"--disable-admission-plugins=MutatingAdmissionPolicy",
	}
	if p.audit {
		args = append(args, "--audit-policy-file="+p.file(auditPolicyName), "--audit-log-path="+p.file(auditLogName),
			"--audit-log-maxsize=4000") // MB; a reader loses its place when it is rotated
	}
	return command{name: "kube-apiserver", path: p.programs.Path("kube-apiserver"), args: args, env: environment()}
}

// unneeded controllers have nothing to control here, or need a cloud, or kubelets that
// request certificates. All others run, so workloads, budgets, node failures and volumes
// behave as in real life. Older versions do not know all of them.
var unneeded = []string{
	"certificatesigningrequest-approving-controller", "certificatesigningrequest-cleaner-controller", "certificatesigningrequest-signing-controller",
	"cloud-node-lifecycle-controller", "device-taint-eviction-controller", "endpointslice-mirroring-controller",
	"kube-apiserver-serving-clustertrustbundle-publisher-controller",
	"legacy-serviceaccount-token-cleaner-controller", "node-ipam-controller", "node-route-controller",
	"persistentvolume-expander-controller", "podcertificaterequest-cleaner-controller", "resourcepoolstatusrequest-controller",
	"service-lb-controller", "storage-version-migrator-controller", "storageversion-garbage-collector-controller",
	"volumeattributesclass-protection-controller",
}

// ofEndpoints are the controllers that write the addresses of Services. Nothing in a control plane
// reads them.
var ofEndpoints = []string{"endpoints-controller", "endpointslice-controller"}

// needed is the setting that runs all controllers but the unneeded ones. It names only those that
// this controller manager knows, which refuses any other name.
func needed(ctx context.Context, controllerManager string, unneeded []string) (string, error) {
	help, err := exec.CommandContext(ctx, controllerManager, "--help").Output()
	if err != nil {
		return "", fmt.Errorf("ask the controller manager which controllers it has: %w", err)
	}
	known := regexp.MustCompile(`[a-z-]+`).FindAllString(string(help), -1)
	setting := "*"
	for _, name := range unneeded {
		if slices.Contains(known, name) {
			setting += ",-" + name
		}
	}
	return setting, nil
}

func (p plan) controllerManager() command {
	return command{name: "kube-controller-manager", path: p.programs.Path("kube-controller-manager"), env: environment(), args: []string{
		"--kubeconfig=" + p.creds.kubeconfig("kube-controller-manager"),
		"--controllers=" + p.controllers,
		"--service-account-private-key-file=" + p.creds.key(),
		"--root-ca-file=" + p.creds.certificate(),
		"--leader-elect=false",
		"--secure-port=0",
		"--node-monitor-grace-period=" + p.nodeGrace().String(),
		"--horizontal-pod-autoscaler-sync-period=1s", // the default of 15 s is long for a test
		"--kube-api-qps=" + unthrottled,
		"--kube-api-burst=" + unthrottled,
		"--profiling=false",
	}}
}

// leaseDuration is four heartbeats: kwok renews a lease when a quarter of it has passed.
func (p plan) leaseDuration() time.Duration { return 4 * p.heartbeat }

// nodeGrace is Kubernetes' own default of 50 s for its heartbeat of 10 s, and
// proportionally longer for a slower one.
func (p plan) nodeGrace() time.Duration { return 5 * p.heartbeat }

func (p plan) scheduler() command {
	return command{name: "kube-scheduler", path: p.programs.Path("kube-scheduler"), health: urlOf("https", p.ports.scheduler) + "/readyz", env: environment(), args: []string{
		"--kubeconfig=" + p.creds.kubeconfig("kube-scheduler"),
		"--authentication-kubeconfig=" + p.creds.kubeconfig("kube-scheduler"),
		"--authorization-kubeconfig=" + p.creds.kubeconfig("kube-scheduler"),
		"--authentication-skip-lookup",
		"--leader-elect=false",
		"--bind-address=127.0.0.1",
		"--secure-port=" + p.ports.scheduler,
		"--kube-api-qps=" + unthrottled,
		"--kube-api-burst=" + unthrottled,
		"--profiling=false",
	}}
}

func (p plan) kwok() command {
	return command{name: "kwok", path: p.programs.Path("kwok"), health: urlOf("http", p.ports.kwok) + "/healthz", env: environment(), args: []string{
		"--kubeconfig=" + p.creds.kubeconfig("kwok"),
		"--config=" + p.file(stagesName),
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
		"--node-lease-duration-seconds=" + strconv.Itoa(int(p.leaseDuration().Seconds())),
		"--node-ip=10.0.0.1",
		"--cidr=10.128.0.0/9",
		"--v=WARN", // otherwise it logs a line for each patch
		"--server-address=127.0.0.1:" + p.ports.kwok,
	}}
}

// karpenter has no flag for the address that it listens on: its two ports are the only
// ones open on other interfaces too.
func (p plan) karpenter() command {
	env := append(environment(),
		"KUBECONFIG="+p.creds.kubeconfig("karpenter"),
		"SYSTEM_NAMESPACE=kube-system",
		"DISABLE_LEADER_ELECTION=true",
		"DISABLE_WEBHOOK=true", // of 1.0, for objects of versions before v1
		"KUBE_CLIENT_QPS="+unthrottled,
		"KUBE_CLIENT_BURST="+unthrottled,
		"METRICS_PORT="+p.ports.karpenterMetrics,
		"HEALTH_PROBE_PORT="+p.ports.karpenterHealth,
	)
	if p.gates != "" {
		env = append(env, "FEATURE_GATES="+p.gates)
	}
	return command{name: "karpenter", path: p.programs.Path("karpenter"), health: urlOf("http", p.ports.karpenterHealth) + "/readyz", env: env}
}
