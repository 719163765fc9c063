package plan

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func deploymentOf(replicas int32, change func(*Deployment)) *Deployment {
	d := &Deployment{}
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
		d := deploymentOf(10, func(d *Deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.Parse(surge) })
		if got := d.maxSurge(); got != want {
			t.Errorf("maxSurge %s of 10 is %d, want %d", surge, got, want)
		}
	}
}

// What the API server always fills in is not taken for granted.
func TestMaxSurgeOfNothing(t *testing.T) {
	rolling, recreate, empty := deploymentOf(10, nil), &Deployment{}, &Deployment{}
	rolling.Spec.Strategy.RollingUpdate.MaxSurge = nil
	recreate.Spec.Strategy.Type, empty.Spec.Strategy.Type = "Recreate", "RollingUpdate"
	for _, d := range []*Deployment{rolling, recreate, empty} {
		if got := d.maxSurge(); got != 0 {
			t.Errorf("maxSurge of strategy %+v is %d, want 0", d.Spec.Strategy, got)
		}
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(*Deployment){
		"":                          nil,
		"has the strategy Recreate": func(d *Deployment) { d.Spec.Strategy.Type = "Recreate" },
		"has maxSurge 0":            func(d *Deployment) { *d.Spec.Strategy.RollingUpdate.MaxSurge = intstr.FromInt32(0) },
		"is paused":                 func(d *Deployment) { d.Spec.Paused = true },
		"is being rolled out":       func(d *Deployment) { d.Status.UpdatedReplicas = 2 },
	} {
		if got := deploymentOf(10, change).refuses(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What an owner has written forbids surges for good; what happens to it meanwhile does not.
func TestSpecified(t *testing.T) {
	object := func(strategy string) []byte {
		data, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"name": "web", "generation": int64(2)},
			"spec": map[string]any{
				"replicas": int64(3), "selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
				"strategy": map[string]any{"type": strategy, "rollingUpdate": map[string]any{"maxSurge": "25%"}},
			},
			"status": map[string]any{"observedGeneration": int64(1)},
		})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for strategy, want := range map[string]string{"RollingUpdate": "", "Recreate": "has the strategy Recreate"} {
		var d Deployment
		if err := json.Unmarshal(object(strategy), &d); err != nil {
			t.Fatal(err)
		}
		w, err := d.Specified()
		if err != nil || w.Refuses != want || !w.Selector.Matches(labels.Set{"app": "web"}) {
			t.Errorf("%s: %+v, %v", strategy, w, err)
		}
	}
}
