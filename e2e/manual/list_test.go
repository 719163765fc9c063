package manual

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"spot-handler/handler/interruption"
)

// entry says how a command of a shell block is played, or a whole block of another kind: the one of
// the page that begins like this.
type entry struct {
	page, begins string

	why     string   // it is not played as it stands, is only read, or neither
	instead []string // what to replace in the command, and by what
	given   string   // runs first: what the reader has from elsewhere

	prints string // what it has to print, as a regular expression
	until  string // for a command that does not end: what it has to print before it is interrupted
	code   int    // its exit code

	part string // what a fragment of YAML is a part of: Pod, Pod.spec

	before, after func(p *play)
	watching      func(p *play) // once it has said that it watches
}

// nowhere is the entry of what has none.
var nowhere entry

// entries are the list. Commands that fit none run as they are, and have to succeed.
var entries = []entry{
	// .github
	{
		page: ".github/CONTRIBUTING.md", begins: "make unit",
		why:     ofTests,
		instead: []string{"make", "make -n"},
		prints:  "go test",
	},
	{
		page: ".github/CONTRIBUTING.md", begins: "make story",
		why:     ofTests,
		instead: []string{"make", "make -n"},
		prints:  `-run 'TestName'`,
	},
	{
		page: ".github/CONTRIBUTING.md", begins: "make lint",
		why:     ofTests,
		instead: []string{"make", "make -n"},
		prints:  "staticcheck",
	},
	{
		page: ".github/CONTRIBUTING.md", begins: "make test",
		why:     ofTests,
		instead: []string{"make", "make -n"},
		prints:  "e2e/stories",
	},
	{page: ".github/CONTRIBUTING.md", begins: "cmd/ ", why: "a list of directories: TestLayoutOfManual reads it"},
	{
		page: ".github/SECURITY.md", begins: "cosign verify \"$IMAGE\"",
		given: "IMAGE=registry.example.com/spot-handler@sha256:1 CHART=registry.example.com/charts/spot-handler@sha256:2",
	},
	{page: ".github/SECURITY.md", begins: "gh attestation", given: "BINARY=archive"},
	{
		page: ".github/SECURITY.md", begins: "sha256sum",
		given:  "echo 1 >archive; sha256sum archive missing >SHA256SUMS 2>/dev/null || :",
		prints: "archive: OK",
	},

	// The front page.
	{page: "README.md", begins: "kubectl spot-handler audit", prints: `(?m)^SH\d+ `},
	{page: "README.md", begins: "kubectl spot-handler plan", prints: `(?m)^1 node lost`},
	{
		page: "README.md", begins: "helm upgrade",
		after: func(p *play) { p.eventuallyPods("imds", poolNodes+2, "drain", 2) },
	},
	{page: "README.md", begins: " metadata service", why: "a picture"},

	// The AWS side.
	{page: "deploy/aws.md", begins: "export AWS_REGION", before: func(p *play) {
		// The page is about both modes: with the DaemonSet there are more logs than kubectl follows at once.
		p.do("helm", "upgrade", "spot-handler", p.root+"/deploy/chart", "--namespace="+namespace, "--reuse-values", "--set=mode=both")
		p.eventuallyPods("imds", poolNodes+2, "queue", 2)
	}},
	{page: "deploy/aws.md", begins: "kubectl -n spot-handler logs", until: `pod/spot-handler-queue-\S+ .*"message":"`},
	{page: "deploy/aws.md", begins: "ec2-spot-interrupter", after: func(p *play) {
		if !p.called("ec2-spot-interrupter --instance-ids " + instance(provoked)) {
			p.Errorf("ec2-spot-interrupter was not given the instance of %s", provoked)
		}
	}},
	{page: "deploy/aws.md", begins: "aws sqs send-message", after: func(p *play) {
		body, err := os.ReadFile(p.sent())
		p.must(err)
		p.queue.Send(string(body))
	}},
	{page: "deploy/aws.md", begins: "kubectl get events", until: `SpotInterruption(.|\n)*Drained`},
	{page: "deploy/aws.md", begins: "kubectl uncordon", after: func(p *play) {
		p.eventually("the end of the interruption", func() bool { return untouched(p.node(provoked)) == "" })
	}},

	{
		page: "deploy/docs/commands.md", begins: "kubectl -n spot-handler exec",
		why:     "mode both is installed, whose Deployment has the other name, and no kubelet runs anything",
		instead: []string{"spot-handler-drain", "spot-handler-queue"},
		prints:  noStreams,
		code:    1,
		after:   (*play).execed,
	},

	{
		page: "deploy/docs/install.md", begins: "helm upgrade --install",
		given: "QUEUE_URL=$MANUAL_QUEUE_URL",
		after: func(p *play) {
			p.eventuallyPods("imds", 0, "queue", 2)
			p.runQueue()
		},
	},
	{page: "deploy/docs/developers.md", begins: "kubectl get events -n default", prints: "SpotInterruption"},

	{page: "deploy/docs/install.md", begins: "helm template", prints: "kind: ClusterRole\n"},
	{page: "deploy/docs/install.md", begins: "helm upgrade spot-handler", after: func(p *play) {
		for _, kind := range []string{"podmonitors", "prometheusrules", "configmaps"} {
			if !strings.Contains(p.do("kubectl", "get", kind, "--namespace="+namespace, "--output=name"), "/spot-handler") {
				p.Errorf("there are no %s of the chart", kind)
			}
		}
	}},

	{
		page: "deploy/docs/interruptions.md", begins: "kubectl annotate node NODE",
		before: func(p *play) {
			p.cancelled = p.inService()
			p.interrupt(p.cancelled)
		},
		after: func(p *play) {
			p.eventually("the end of the cancelled interruption", func() bool {
				return p.node(p.cancelled).Annotations[interruption.Annotation] == ""
			})
			p.cancelled = ""
		},
	},

	{
		page: "deploy/docs/install-on.md", begins: "helm upgrade --install",
		given: "helm get values spot-handler --namespace spot-handler --output yaml >values.yaml",
	},
	{
		page: "deploy/docs/install-on.md", begins: "apiVersion: argoproj.io/v1alpha1",
		why: "the API server does not know Argo CD's kinds; TestRecipes renders the values",
	},
	{
		page: "deploy/docs/install-on.md", begins: "apiVersion: source.toolkit.fluxcd.io/v1",
		why: "the API server does not know Flux's kinds; TestRecipes renders the values",
	},
	{
		page: "deploy/docs/install-on.md", begins: "scrape_configs:",
		why: "it is for Prometheus 3, and Debian's is older",
	},
	{
		page: "deploy/docs/install-on.md", begins: "module \"spot_handler\"",
		why: "Terraform downloads AWS's provider: TestGuideUsesTheModule reads it",
	},

	{page: "deploy/docs/loadbalancers.md", begins: "spec:", part: "Pod"},
	{
		page: "deploy/docs/migration.md", begins: "kubectl -n kube-system",
		before: (*play).installOther,
		prints: `(?m)^mode: imds`,
	},
	{page: "deploy/docs/migration.md", begins: "helm -n kube-system", prints: `(?m)^mode: imds`},

	{page: "deploy/docs/recipes.md", begins: "spark.", why: "only Spark reads it"},
	{
		page: "deploy/docs/recipes.md", begins: "touch",
		why:     "/run/job is in a volume of the runner's pod",
		instead: []string{"/run/job", "."},
		given:   "mkdir -p job; cd job",
	},
	{page: "deploy/docs/recipes.md", begins: "import datetime", after: (*play).ray},
	{page: "deploy/docs/recipes.md", begins: "import os\n", after: (*play).runner},
	{
		page: "deploy/docs/recipes.md", begins: "import os, threading",
		why: "PyTorch is not to be had here, and ten times as large as all else",
	},

	{
		page: "deploy/docs/reference.md", begins: "Annotations:",
		why: "what kubectl describe prints of a Node, much shortened",
	},

	// Nobody is there to say yes.
	{
		page: "deploy/docs/rehearse.md", begins: "spot-handler rehearse --pool",
		why:     "it asks",
		instead: []string{"rehearse", "rehearse --yes"},
		after:   wrote("mass.html"),
	},
	{
		page: "deploy/docs/rehearse.md", begins: "spot-handler rehearse NODE",
		why:     "it asks",
		instead: []string{"rehearse", "rehearse --yes"},
		after:   wrote("first.html"),
	},
	{page: "deploy/docs/rehearse.md", begins: "spot-handler audit\n", prints: `(?m)^ID +SEVERITY`},

	{page: "deploy/docs/replacement.md", begins: "kubectl get nodeclaims", prints: `REPLACES +SETTLED`},

	{
		page: "deploy/docs/report.md", begins: "spot-handler observe ip-10",
		watching: func(p *play) { p.interrupt(observed) }, // it shows nothing of what was over before
		until:    "noticed: spot-interruption",
		after:    wrote("interruption.html"),
	},
	{
		page: "deploy/docs/report.md", begins: "spot-handler observe --all",
		watching: func(p *play) { p.interrupt(p.inService(p.cancelled)) }, // the one before can be over: it had no pods
		until:    "noticed: spot-interruption",
		after:    wrote("mass.html"),
	},

	{
		page: "deploy/docs/supported.md", begins: "while",
		instead: []string{"while", "set +o pipefail; while"},
		why:     "grep -q leaves kubectl with a pipe that nobody reads",
	},
	{
		page: "deploy/docs/supported.md", begins: "kubectl annotate nodes --all --overwrite",
		before: func(p *play) {
			p.do("kubectl", "delete", "node", observed) // EC2 has taken it, so it does not keep its record
			p.interrupt(p.inService())
		},
	},
	{page: "deploy/docs/supported.md", begins: "helm uninstall", after: func(p *play) {
		p.daemon.Stop()
		p.eventuallyPods("imds", 0, "queue", 0) // a namespace with pods in it is looked at again only after their grace period
	}},
	{page: "deploy/docs/supported.md", begins: "kubectl label nodes,nodeclaims", after: (*play).nothingLeft},

	{page: "deploy/docs/webhooks.md", begins: "{\"text\": {{", why: "a template: TestTemplateOfManual parses it"},

	{page: "deploy/docs/workloads.md", begins: "{\n  \"specversion\"", after: (*play).shownNotice},
	{page: "deploy/docs/workloads.md", begins: "import http.server", after: (*play).library},
	{page: "deploy/docs/workloads.md", begins: "      volumes:", part: "Pod.spec"},
	{
		page: "deploy/docs/workloads.md", begins: "until",
		why:     "the volume is in a pod",
		instead: []string{"/etc/spot", "."},
		given:   "echo 2026-01-01T12:01:20Z >evict-by",
	},
	{
		page: "deploy/docs/workloads.md", begins: "echo \"out by",
		why:     "the volume is in a pod",
		instead: []string{"/etc/spot", "."},
		prints:  "out by 2026-01-01T12:01:20Z",
	},

	{page: "deploy/runbook.md", begins: "spot-handler status", prints: provoked},
	{page: "deploy/runbook.md", begins: "kubectl get events", prints: `SpotInterruption(.|\n)*Drained`},
	{
		page: "deploy/runbook.md", begins: "kubectl -n spot-handler logs",
		prints: `"message":"interruption accepted\b(.|\n)*"message":"drained"`,
	},
}

const ofTests = "this test is one of those that it runs"

// words are those that the reader fills in.
var words = map[string]func(p *play) string{
	"REGISTRY": func(*play) string { return "registry.example.com" },
	"NODE": func(p *play) string {
		if p.cancelled != "" {
			return p.cancelled
		}
		return p.inService()
	},
	"NAME": func(p *play) string {
		return strings.Fields(p.do("kubectl", "get", "nodeclaims", "--output=jsonpath={.items[*].metadata.name}"))[0]
	},
	"GROUP":    func(*play) string { return "group-1" },
	"HOOK":     func(*play) string { return "hook-1" },
	"INSTANCE": func(*play) string { return instance(observed) },
}

// standIn is a program that a block calls and that is not to be had here.
type standIn struct {
	why  string
	does string // as a shell script, after it has noted how it was called
}

// standIns are all of them, by name. A block that calls one runs to its end.
var standIns = map[string]standIn{
	"docker":  {"there is no daemon, and no registry", `[ "$1" = push ] || exit 2`},
	"buildah": {"there is no registry, and TestMakeImage builds with the real one", ``},
	// The real command line, if there is one, knows the options and reads the query, and calls nothing.
	"aws": {"there is no AWS", `
if [ -n "$MANUAL_AWS" ] && [ "$1 $2" != "cloudformation deploy" ]; then
	"$MANUAL_AWS" "$@" --generate-cli-skeleton input >/dev/null || exit
fi
case "$1 $2" in
"cloudformation describe-stacks") echo "$MANUAL_QUEUE_URL" ;;
"sqs get-queue-url") echo "$MANUAL_QUEUE_URL-my-cluster-dead-letters" ;;
"sqs send-message")
	[ "$3 $4 $5" = "--queue-url $MANUAL_QUEUE_URL --message-body" ] || exit 2
	printf %s "$6" >"$MANUAL_SENT" ;;
esac`},
	"ec2-spot-interrupter": {"there is no EC2", ``},
	"cosign":               {"nothing is signed before the first release", `[ "$1" = verify ] || [ "$1" = verify-blob ]`},
	"gh":                   {"nothing is signed before the first release", `[ "$1 $2 $4" = "attestation verify --repo" ]`},
	"kubectl-krew":         {"there is no release to install", `[ "$1" = install ]`},
}

// list is the entries, and which of them have been used.
type list struct {
	used map[int]bool
}

func newList() *list { return &list{used: map[int]bool{}} }

// entry is that of the command, or of the block: the one that says most of how it begins.
func (l *list) entry(page, text string) *entry {
	best := -1
	for i, e := range entries {
		if e.page == page && strings.HasPrefix(text+"\n", e.begins) && (best < 0 || len(e.begins) > len(entries[best].begins)) {
			best = i
		}
	}
	if best < 0 {
		return &nowhere
	}
	l.used[best] = true
	return &entries[best]
}

// unused are the entries that nothing fits.
func (l *list) unused() (found []string) {
	for i, e := range entries {
		if !l.used[i] {
			found = append(found, fmt.Sprintf("%s: %s", e.page, e.begins))
		}
	}
	slices.Sort(found)
	return found
}
