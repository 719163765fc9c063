package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestQuotaLacks(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		l := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return l
	}
	p := pod("p", func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: list("cpu", "500m", "memory", "1Gi"), Limits: list("memory", "2Gi"),
		}}}
	})
	for name, tt := range map[string]struct {
		spec       corev1.ResourceQuotaSpec
		hard, used corev1.ResourceList
		want       string
	}{
		"room for one":     {hard: list("pods", "3"), used: list("pods", "2")},
		"full":             {hard: list("pods", "3"), used: list("pods", "3"), want: "pods"},
		"lowered":          {hard: list("count/pods", "1"), used: list("count/pods", "3"), want: "count/pods"},
		"just enough CPU":  {hard: list("cpu", "2"), used: list("cpu", "1500m")},
		"too little CPU":   {hard: list("requests.cpu", "2"), used: list("requests.cpu", "1501m"), want: "requests.cpu"},
		"memory, limits":   {hard: list("memory", "4Gi", "limits.memory", "4Gi"), used: list("memory", "3Gi", "limits.memory", "3Gi"), want: "limits.memory"},
		"asks for none":    {hard: list("limits.cpu", "1", "requests.storage", "0"), used: list("limits.cpu", "1")},
		"not counted yet":  {},
		"of other objects": {hard: list("services", "1", "count/secrets", "1"), used: list("services", "1", "count/secrets", "1")},
		"with a scope": {
			spec: corev1.ResourceQuotaSpec{Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}},
			hard: list("pods", "3"), used: list("pods", "3"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var around NamespaceConstraints
			around.AddQuota(&corev1.ResourceQuota{Spec: tt.spec, Status: corev1.ResourceQuotaStatus{Hard: tt.hard, Used: tt.used}})
			got := ""
			for _, q := range around.quotas {
				got += q.lacks(p)
			}
			if got != tt.want {
				t.Errorf("lacks %q, want %q", got, tt.want)
			}
		})
	}
}
