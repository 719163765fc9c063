package chart

import (
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// The audit is off by default. Where it is on, it runs as a Job that fails for what it finds, is
// not tried again, and can change nothing.
func TestAudit(t *testing.T) {
	render := func(changes map[string]any) []unstructured.Unstructured {
		objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values("queue", changes)})
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(objects, func(o unstructured.Unstructured) bool {
			return o.GetLabels()["app.kubernetes.io/component"] != "audit"
		})
	}
	if objects := render(nil); len(objects) > 0 {
		t.Errorf("%d objects that nobody has asked for", len(objects))
	}
	for _, tt := range []struct {
		changes map[string]any
		args    []string
		volumes int
	}{
		{map[string]any{"audit.enabled": true}, []string{"audit", "--fail-on=critical"}, 0},
		{map[string]any{"audit.enabled": true, "audit.failOn": ""}, []string{"audit"}, 0},
		{
			map[string]any{"audit.enabled": true, "audit.baseline": `{"findings": []}`, "webhook.secretName": "hook"},
			[]string{"audit", "--fail-on=critical", "--baseline=/etc/spot-handler/audit/baseline.json"}, 1,
		},
	} {
		kinds := map[string]bool{}
		for _, o := range render(tt.changes) {
			kinds[o.GetKind()] = true
			switch o.GetKind() {
			case "CronJob":
				var c batchv1.CronJob
				decode(t, o, &c)
				job := c.Spec.JobTemplate.Spec
				pod := job.Template.Spec
				if deref(job.BackoffLimit, 6) != 0 || pod.RestartPolicy != corev1.RestartPolicyNever {
					t.Error("it is tried again")
				}
				if got := containerArgs(t, job.Template); !slices.Equal(got, tt.args) {
					t.Errorf("arguments %q, want %q", got, tt.args)
				}
				if len(pod.Volumes) != tt.volumes || len(pod.Containers[0].VolumeMounts) != tt.volumes {
					t.Errorf("volumes %v, want %d", pod.Volumes, tt.volumes)
				}
				confined(t, pod)
			case "ClusterRole":
				var role rbacv1.ClusterRole
				decode(t, o, &role)
				for _, rule := range role.Rules {
					asks := slices.Equal(rule.Resources, []string{"subjectaccessreviews"}) && slices.Equal(rule.Verbs, []string{"create"})
					remembers := slices.Equal(rule.ResourceNames, []string{"spot-handler-offerings"}) && slices.Equal(rule.Verbs, []string{"get"})
					if !slices.Equal(rule.Verbs, []string{"list"}) && !asks && !remembers {
						t.Errorf("it may %v %v", rule.Verbs, rule.Resources)
					}
				}
			}
		}
		for _, kind := range []string{"CronJob", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "NetworkPolicy"} {
			if !kinds[kind] {
				t.Errorf("%v: no %s", tt.changes, kind)
			}
		}
	}
}

func decode(t *testing.T, o unstructured.Unstructured, into any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, into, true); err != nil {
		t.Fatalf("%s: %v", id(o), err)
	}
}
