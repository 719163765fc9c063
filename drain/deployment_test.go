package drain

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func deploymentOf(replicas int32, change func(*deployment)) *deployment {
	d := &deployment{}
	d.Spec.Replicas = &replicas
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	d.Spec.Strategy.Type = "RollingUpdate"
	d.Spec.Strategy.RollingUpdate = &struct {
		MaxSurge *intstr.IntOrString `json:"maxSurge"`
	}{MaxSurge: new(intstr.FromString("25%"))}
	d.Status.Replicas, d.Status.UpdatedReplicas = replicas, replicas
	if change != nil {
		change(d)
	}
	return d
}

func TestMaxSurge(t *testing.T) {
	for surge, want := range map[string]int{"25%": 3, "0%": 0, "2": 2, "0": 0, "much": 0} {
		d := deploymentOf(10, func(d *deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.Parse(surge) })
		if got := d.maxSurge(); got != want {
			t.Errorf("maxSurge %s of 10 is %d, want %d", surge, got, want)
		}
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(*deployment){
		"":                          nil,
		"has the strategy Recreate": func(d *deployment) { d.Spec.Strategy.Type = "Recreate" },
		"has maxSurge 0":            func(d *deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.FromInt32(0) },
		"is paused":                 func(d *deployment) { d.Spec.Paused = true },
		"is being rolled out":       func(d *deployment) { d.Status.UpdatedReplicas = 2 },
	} {
		if got := deploymentOf(10, change).refuses(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
