package manual

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"spot-handler/e2e/chart"
	"spot-handler/handler/interruption"
)

// readers play the blocks that are not commands, by their kind.
var readers = map[string]func(p *play, e *entry, b block){
	"console": (*play).console,
	"json":    (*play).json,
	"python":  (*play).python,
	"toml":    (*play).toml,
	"yaml":    (*play).yaml,
}

// heading is a line of a table's headings.
var heading = regexp.MustCompile(`(?m)^[A-Z][A-Z, ]+$`)

// console runs the command, and looks for the tables that the block shows.
func (p *play) console(e *entry, b block) {
	p.Helper()
	command, shown, _ := strings.Cut(strings.TrimPrefix(b.text, prompt), "\n")
	headings := heading.FindAllString(shown, -1)
	if len(headings) == 0 {
		p.Error("the block shows no table")
	}
	said, code, err := p.shell.run(p.Context(), p.fill(command), nil)
	p.Logf("$ %s\n%s", command, said)
	if code != 0 || err != nil {
		p.Fatalf("%q: exit code %d, %v\n%s", command, code, err, said)
	}
	printed := "\n"
	for line := range strings.Lines(said) {
		printed += strings.Join(strings.Fields(line), " ") + "\n"
	}
	for _, h := range headings {
		if !strings.Contains(printed, "\n"+strings.Join(strings.Fields(h), " ")+"\n") {
			p.Errorf("%q prints no table of %q\n%s", command, h, said)
		}
	}
}

func (p *play) json(_ *entry, b block) {
	p.Helper()
	var object map[string]any
	if err := json.Unmarshal([]byte(b.text), &object); err != nil {
		p.Errorf("no JSON: %v\n%s", err, b.text)
	}
}

func (p *play) toml(_ *entry, b block) {
	p.Helper()
	p.pipe(b.text, "python3", "-c", "import sys, tomllib; tomllib.loads(sys.stdin.read())")
}

func (p *play) python(_ *entry, b block) {
	p.Helper()
	p.pipe(b.text, "python3", "-c", "import ast, sys; ast.parse(sys.stdin.read())")
}

// yaml hands objects to the API server, which refuses fields that it does not know, and values to the
// chart. Fragments are completed first.
func (p *play) yaml(e *entry, b block) {
	p.Helper()
	objects, err := chart.Objects(b.text) // strict: a key that comes twice is an error
	p.must(err)
	if e.why != "" {
		return
	}
	for _, shown := range objects {
		if e.part == "" && p.areValues(shown.Object) {
			p.values(shown.Object)
			continue
		}
		object, err := complete(e.part, shown.Object)
		p.must(err)
		text, err := yaml.Marshal(object)
		p.must(err)
		p.Logf("%s", p.pipe(string(text), "kubectl", "apply", "--dry-run=server", "--validate=strict", "--filename=-"))
	}
}

// areValues reports whether all that is shown has a name that the chart has a value of.
func (p *play) areValues(shown map[string]any) bool {
	p.Helper()
	text, err := os.ReadFile(filepath.Join(p.root, "deploy", "chart", "values.yaml"))
	p.must(err)
	var known map[string]any
	p.must(yaml.UnmarshalStrict(text, &known))
	for name := range shown {
		if _, ok := known[name]; !ok {
			return false
		}
	}
	return true
}

// values have to be such as the chart takes, and to change what it renders.
func (p *play) values(values map[string]any) {
	p.Helper()
	helms, err := chart.Helms(p.Context(), p.Output())
	p.must(err)
	h := helms[len(helms)-1]
	all := chart.Values("imds", nil)
	without, err := h.Template(p.Context(), chart.Release{Values: all})
	p.must(err)
	for name, value := range values {
		into, _ := all[name].(map[string]any)
		if more, ok := value.(map[string]any); ok && into != nil {
			maps.Copy(into, more)
		} else {
			all[name] = value
		}
	}
	with, err := h.Template(p.Context(), chart.Release{Values: all})
	p.must(err)
	if with == without {
		p.Error("the chart renders the same without these values")
	}
}

// versions are those of the kinds of which the manual shows only a part.
var versions = map[string]string{"Deployment": "apps/v1", "Pod": "v1"}

// complete makes an object of what a block shows: of all of one, or of a part such as Pod.spec.
func complete(part string, shown map[string]any) (map[string]any, error) {
	kind, path, _ := strings.Cut(part, ".")
	for name := range strings.SplitSeq(path, ".") {
		if name != "" {
			shown = map[string]any{name: shown}
		}
	}
	object := unstructured.Unstructured{Object: shown}
	if kind != "" {
		object.SetKind(kind)
	}
	if object.GetAPIVersion() == "" {
		if versions[object.GetKind()] == "" {
			return nil, fmt.Errorf("the version of the kind %q is not known", object.GetKind())
		}
		object.SetAPIVersion(versions[object.GetKind()])
	}
	object.SetName(strings.TrimSuffix("shown-"+object.GetName(), "-")) // there might be one of the name
	var pod []string                                                   // where it has its pod
	switch object.GetKind() {
	case "Pod":
		pod = []string{"spec"}
	case "Deployment":
		pod = []string{"spec", "template", "spec"}
		labels := map[string]string{"app": "shown"}
		for _, at := range [][]string{{"spec", "selector", "matchLabels"}, {"spec", "template", "metadata", "labels"}} {
			if err := unstructured.SetNestedStringMap(object.Object, labels, at...); err != nil {
				return nil, err
			}
		}
	default:
		return object.Object, nil
	}
	containers, _, err := unstructured.NestedSlice(object.Object, append(pod, "containers")...)
	if err != nil {
		return nil, err
	}
	if len(containers) == 0 {
		containers = []any{map[string]any{"name": "shown"}}
	}
	for _, container := range containers {
		if c, ok := container.(map[string]any); ok && c["image"] == nil {
			c["image"] = "shown"
		}
	}
	return object.Object, unstructured.SetNestedSlice(object.Object, containers, append(pod, "containers")...)
}

// wrote is for a command that writes a report into the directory.
func wrote(file string) func(p *play) {
	return func(p *play) {
		p.Helper()
		said, code, err := p.shell.run(p.Context(), "head -c 15 "+file, nil)
		if code != 0 || err != nil || !strings.EqualFold(said, "<!doctype html>") {
			p.Errorf("%s begins with %q: %d, %v", file, said, code, err)
		}
	}
}

// execed checks what the kubelet was asked for, and runs it outside of the pod.
func (p *play) execed() {
	p.Helper()
	p.kubelet.mu.Lock()
	defer p.kubelet.mu.Unlock()
	status := regexp.MustCompile(`^spot-handler/spot-handler-queue-\S+ /spot-handler status$`)
	if len(p.kubelet.ran) != 1 || !status.MatchString(p.kubelet.ran[0]) {
		p.Errorf("the kubelet was asked for %q", p.kubelet.ran)
	}
	if said, code, err := p.shell.run(p.Context(), "spot-handler status", nil); code != 0 || err != nil {
		p.Errorf("status: exit code %d, %v\n%s", code, err, said)
	}
}

// installOther installs what the reader of the page about migration comes from, as far as it is read.
func (p *play) installOther() {
	p.Helper()
	const name = "aws-node-termination-handler"
	dir := p.mkdir(name)
	p.must(os.WriteFile(filepath.Join(dir, "Chart.yaml"), []byte("apiVersion: v2\nname: "+name+"\nversion: 0.27.0\n"), 0o600))
	p.must(os.Mkdir(filepath.Join(dir, "templates"), 0o700))
	p.must(os.WriteFile(filepath.Join(dir, "templates", "daemonset.yaml"), []byte(`
apiVersion: apps/v1
kind: DaemonSet
metadata: { name: aws-node-termination-handler, labels: { app.kubernetes.io/name: aws-node-termination-handler } }
spec:
  selector: { matchLabels: { app.kubernetes.io/name: aws-node-termination-handler } }
  template:
    metadata: { labels: { app.kubernetes.io/name: aws-node-termination-handler } }
    spec:
      nodeSelector: { nowhere: "" }
      containers:
        - name: aws-node-termination-handler
          image: public.ecr.aws/aws-ec2/aws-node-termination-handler:v1.25.6
          env:
            - { name: ENABLE_REBALANCE_MONITORING, value: {{ .Values.enableRebalanceMonitoring | quote }} }
`), 0o600))
	p.do("helm", "install", name, dir, "--namespace=kube-system", "--set=enableRebalanceMonitoring=true")
}

// ofOthers are marks that spot-handler only reads: those of the rig, the instance, which the rig says in a label,
// and the reservation of a Capacity Block, which the manual has the reader label.
func ofOthers(mark string) bool {
	return strings.Contains(mark, "e2e.spot-handler/") || mark == interruption.InstanceIDLabel || mark == interruption.ReservationLabel
}

// nothingLeft checks that the page about uninstalling names everything.
func (p *play) nothingLeft() {
	p.Helper()
	var left []string
	for _, resource := range []string{"nodes", "nodeclaims"} {
		var all struct{ Items []unstructured.Unstructured }
		p.must(json.Unmarshal([]byte(p.do("kubectl", "get", resource, "--output=json")), &all))
		for _, o := range all.Items {
			taints, _, _ := unstructured.NestedSlice(o.Object, "spec", "taints")
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			marks := slices.Concat(slices.Collect(maps.Keys(o.GetAnnotations())), slices.Collect(maps.Keys(o.GetLabels())))
			for _, mark := range slices.Concat(taints, conditions) {
				marks = append(marks, fmt.Sprint(mark))
			}
			for _, mark := range marks {
				if strings.Contains(mark, "spot-handler/") && !ofOthers(mark) {
					left = append(left, o.GetName()+": "+mark)
				}
			}
		}
	}
	kinds := strings.Join([]string{
		"clusterroles", "clusterrolebindings", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
		"flowschemas", "prioritylevelconfigurations", "priorityclasses",
	}, ",")
	objects := p.do("kubectl", "get", kinds, "--selector=app.kubernetes.io/name=spot-handler", "--output=name")
	left = append(left, strings.Fields(objects)...)
	if len(left) > 0 {
		p.Errorf("after the uninstallation there are still %q", left)
	}
}
