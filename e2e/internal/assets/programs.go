package assets

// Sets of programs, for Ensure.
const (
	ControlPlane = "controlplane" // etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl, kwok, karpenter
	Helm         = "helm"         // HelmV3, HelmV4
	Handler      = "handler"      // NodeTerminationHandler
)

// Names of programs.
const (
	HelmV3 = "helm3" // that most people still have
	HelmV4 = "helm4"

	// NodeTerminationHandler is the handler that most people come from.
	NodeTerminationHandler = "node-termination-handler"
)

// program is one executable.
type program struct {
	name string
	pkg  string // its main package, in a module that go.mod pins
}

// collection is programs that one module of pins describes.
type collection struct {
	name     string // in the cache
	module   string // directory of the pins, below the checkout
	programs []program
	flags    func(moduleDir string) (string, error) // for the linker; nil: none but stripped
	takes    string                                 // how long the first build is
	crds     []string                               // directories of Karpenter's module, with those that belong to it

	of, variable string // the module whose version the environment variable chooses; empty: none does
}

// pins is the module of the versions that the tests take by themselves. Below it are modules of others.
const pins = "e2e/controlplane/binaries"

// sets are the collections of each set.
var sets = map[string][]collection{
	ControlPlane: {
		{
			name:     "kubernetes",
			module:   pins,
			flags:    kubernetesFlags,
			takes:    "7 minutes",
			of:       kubernetesModule,
			variable: KubernetesVariable,
			programs: []program{
				{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
				{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
				{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
			},
		},
		{
			name:   "newest",
			module: pins,
			flags:  kubernetesFlags,
			takes:  "2 minutes",
			programs: []program{
				{"etcd", "go.etcd.io/etcd/server/v3"},
				{"kwok", "sigs.k8s.io/kwok/cmd/kwok"},
				{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
			},
		},
		{
			name:     "karpenter",
			module:   pins,
			flags:    kubernetesFlags,
			takes:    "a minute",
			of:       karpenterModule,
			variable: KarpenterVariable,
			programs: []program{{"karpenter", "sigs.k8s.io/karpenter/kwok"}},
			crds:     []string{"pkg/apis/crds", "kwok/apis/crds"},
		},
	},
	// Both are pinned by one module, so that they are built with the same libraries, which
	// is most of the work.
	Helm: {{
		name:   "helm",
		module: "e2e/chart/binaries",
		flags:  helmFlags,
		takes:  "3 minutes",
		programs: []program{
			{HelmV4, "helm.sh/helm/v4/cmd/helm"},
			{HelmV3, "helm.sh/helm/v3/cmd/helm"},
		},
	}},
	Handler: {{
		name:     "handler",
		module:   "e2e/foreign/binaries",
		takes:    "2 minutes",
		programs: []program{{NodeTerminationHandler, "github.com/aws/aws-node-termination-handler/cmd"}},
	}},
}
