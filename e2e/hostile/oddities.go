package hostile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// largest is how many bytes of an object the API server still takes: etcd's limit is 1.5 MiB for the
// whole request, and there is the rest of the object.
const largest = 1_300_000

// mostSelected is how many labels or values a selector has. With 300,000 in one disruption budget
// the control plane itself stands still: for each change of a pod in the namespace
// kube-controller-manager checks them all, one after the other, and no budget of the cluster is
// updated meanwhile; and for each eviction there the API server does.
const mostSelected = 100

// dice draw what the tenant writes.
type dice struct {
	*rand.Rand
	canary string // the file that a hostile name has made where a shell has run it
	size   int    // of a large object
	plain  bool
}

func pick[T any](d dice, from ...T) T { return from[d.IntN(len(from))] }

// odd is text that harms whoever shows it as it is, or runs it.
func (d dice) odd() string {
	return pick(d,
		"\x1b]52;c;dG91Y2g=\a", "\x1b]0;all is well\a", "\x1b[2J\x1b[1;1H", "\u009b31mred", "a\r\nb\tc\bd", "\x7f\u0085\u2028",
		"db; touch "+d.canary, "$(touch "+d.canary+")", "`touch "+d.canary+"`", "'; touch "+d.canary+"; echo '",
		"\" ; touch "+d.canary+" ; echo \"", "x\ntouch "+d.canary+"\n", "x & touch "+d.canary+" #", "a || touch "+d.canary,
		"--namespace=kube-system", "-", "", " ", "../../../secrets", "%s%n%!", "<script>alert(1)</script>",
		"{{range until 2000000000}}x{{end}}", "\u202egnp.exe", strings.Repeat("A", 100_000), strings.Repeat("\x1b[31m", 1000), "NaN", "1e999", "{\"a\":", "null",
	)
}

// owners are references to what there is not: the garbage collector knows no such kind, and leaves
// the object alone.
func (d dice) owners(n int) []metav1.OwnerReference {
	var owners []metav1.OwnerReference
	if d.plain { // kube-controller-manager asks all the API for such kinds, again and again
		n = 0
	}
	for i := range n {
		controls := i == 0
		owners = append(owners, metav1.OwnerReference{
			APIVersion: pick(d, "hostile.example.com/v1", "apps.example.com/v1"), Kind: pick(d, "StatefulSet", "ReplicaSet", "Job", d.odd()+"x"),
			Name: d.odd() + "x", UID: types.UID(d.odd() + fmt.Sprint(i)), Controller: &controls,
		})
	}
	return owners
}

// annotations are those that the daemon and the commands read, with nonsense.
func (d dice) annotations() map[string]string {
	all := map[string]string{}
	for _, name := range []string{
		"spot-handler/when", "spot-handler/blocked-pods", "spot-handler/notice-replacement", "spot-handler/deadline", "spot-handler/evict-by",
		"spot-handler/surged", "spot-handler/interruption", "spot-handler/cancel", "spot-handler/interrupted-node", "spot-handler/pods",
		"karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/safe-to-evict",
		"deployment.kubernetes.io/revision", "spot-handler/expires", "spot-handler/holds-for",
	} {
		switch d.IntN(4) {
		case 0:
			all[name] = d.odd()
		case 1:
			all[name] = pick(d, "now", "hold", "last", "leave", "delete", "true", "false", "2999-01-01T00:00:00Z", "-9223372036854775808")
		}
	}
	all["controller.kubernetes.io/pod-deletion-cost"] = pick(d, "-2147483648", "2147483647", "0") // else refused
	return all
}

// gangLabels are those by which operators name the peers of a pod.
func (d dice) gangLabels() map[string]string {
	all := map[string]string{}
	for _, name := range []string{
		"spot-handler/gang", "ray.io/cluster", "jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name",
		"leaderworkerset.sigs.k8s.io/name", "batch.kubernetes.io/job-name", "scheduling.x-k8s.io/pod-group", "spark-app-selector",
		"pod-template-hash", "pod-template-hash.spot-handler/surged", "statefulset.kubernetes.io/pod-name",
	} {
		if d.IntN(3) == 0 {
			all[name] = pick(d, "all", "0", strings.Repeat("g", 63), "a.b-c_d")
		}
	}
	return all
}

// swell makes a pod or its template large, in one of many ways.
func (d dice) swell(meta *metav1.ObjectMeta, spec *corev1.PodSpec, size int) {
	c := &spec.Containers[0]
	if d.plain {
		d.label(meta, keptBytes)
		c.Env = []corev1.EnvVar{{Name: "A", Value: strings.Repeat("\x1b", size/sixfold)}}
		return
	}
	switch d.IntN(9) {
	case 0: // many tiny entries cost much more decoded than encoded
		for range size / 7 {
			c.Env = append(c.Env, corev1.EnvVar{Name: "A"})
		}
	case 1:
		c.Args = make([]string, size/2)
	case 2:
		c.Args = []string{strings.Repeat("\x1b[31m", size/6)}
	case 3: // labels count twice: the API server notes who set each
		d.label(meta, size)
	case 4:
		for range size / 20 {
			spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
		}
	case 5:
		var values []string
		for i := range size / 8 {
			values = append(values, fmt.Sprint(i%100_000))
		}
		spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "a", Operator: corev1.NodeSelectorOpNotIn, Values: values}}}},
		}}}
	case 6: // as many as are worth their managed fields
		for i := range size / 1000 {
			spec.Containers = append(spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "fake"})
		}
	case 7:
		c.Env = []corev1.EnvVar{{Name: "A", Value: strings.Repeat("$(A)", size/4)}}
	default:
		for i := range size / 30 {
			c.Command = append(c.Command, fmt.Sprintf("%024d", i))
		}
	}
	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	if d.IntN(3) == 0 && size < d.size {
		meta.Annotations["large"] = strings.Repeat("x", 200_000)
	}
}

// keptBytes is about as much as spot-handler keeps of one object of a tenant.
const keptBytes = 16 << 10

// sixfold is how much longer an escape character is in JSON, in which most kinds are read, than in the control
// plane's store.
const sixfold = 6

// fill makes an object large by its metadata.
func (d dice) fill(meta *metav1.ObjectMeta, size int) {
	if !d.plain {
		d.label(meta, size)
		return
	}
	d.label(meta, keptBytes)
	dropLong(meta) // there is a bound for all of them
	meta.Annotations["large"] = strings.Repeat("\x1b", size/sixfold)
}

// dropLong drops the longest of what dice.annotations has drawn.
func dropLong(meta *metav1.ObjectMeta) {
	maps.DeleteFunc(meta.Annotations, func(_, value string) bool { return len(value) > 1000 })
}

// label adds labels, of which there can be any number.
func (d dice) label(meta *metav1.ObjectMeta, size int) {
	if meta.Labels == nil {
		meta.Labels = map[string]string{}
	}
	length := pick(d, 6, 62)
	for i := range size / (3*length + 22) {
		meta.Labels[fmt.Sprintf("l%0*d", length, i)] = strings.Repeat("x", length)
	}
}

// selector is one of many values, or of many labels.
func (d dice) selector() *metav1.LabelSelector {
	n := mostSelected
	if d.plain {
		n = 5
	}
	if d.IntN(2) == 0 {
		many := map[string]string{}
		for i := range n {
			many[fmt.Sprintf("l%062d", i)] = strings.Repeat("x", 63)
		}
		return &metav1.LabelSelector{MatchLabels: many}
	}
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("%063d", i)
	}
	values[0] = fmt.Sprint(d.IntN(90))
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "hostile", Operator: pick(d, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn), Values: values}}}
}
