package chart

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Secret of the webhook is mounted into the pods of every mode beside volumes of one's
// own, read-only, and its keys become the flags of the files.
func TestWebhookOfSecret(t *testing.T) {
	change := map[string]any{
		"webhook.secretName": "hook", "webhook.urlKey": "link", "webhook.templateKey": "template",
		"queue.volumes":      []any{map[string]any{"name": "ca", "configMap": map[string]any{"name": "ca"}}},
		"queue.volumeMounts": []any{map[string]any{"name": "ca", "mountPath": "/ca"}},
	}
	objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values("both", change)})
	if err != nil {
		t.Fatal(err)
	}
	for mode, volumes := range map[string]int{"imds": 1, "queue": 2} {
		pod := workload(t, objects, mode)
		c := pod.Spec.Containers[0]
		for _, want := range []string{"--webhook-url-file=/etc/spot-handler/webhook/link", "--webhook-template-file=/etc/spot-handler/webhook/template"} {
			if !slices.Contains(c.Args, want) {
				t.Errorf("%s: no %s in %q", mode, want, c.Args)
			}
		}
		if len(pod.Spec.Volumes) != volumes || len(c.VolumeMounts) != volumes {
			t.Errorf("%s: volumes %v, mounts %v", mode, pod.Spec.Volumes, c.VolumeMounts)
		}
		if v := pod.Spec.Volumes[0]; v.Secret == nil || v.Secret.SecretName != "hook" {
			t.Errorf("%s: volume %v", mode, v)
		}
		if want := (corev1.VolumeMount{Name: "webhook", MountPath: "/etc/spot-handler/webhook", ReadOnly: true}); c.VolumeMounts[0] != want {
			t.Errorf("%s: mount %v", mode, c.VolumeMounts[0])
		}
		if slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--webhook-headers-file") }) {
			t.Errorf("%s: headers that nobody has asked for: %q", mode, c.Args)
		}
	}
}

// The network policies let a webhook out, by the port of its proxy or of its URL.
func TestWebhookIsLetOut(t *testing.T) {
	for value, port := range map[string]int32{
		"webhookProxy http://proxy.example.com:3128":  3128,
		"webhookProxy http://u:p@proxy.example.com/":  80,
		"webhookProxy socks5://proxy.example.com":     1080,
		"webhookUrl http://alerts.example.com:9095/a": 9095,
		"webhookUrl https://hooks.example.com/a":      443,
	} {
		flag, url, _ := strings.Cut(value, " ")
		objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values("both", map[string]any{"imds.hostNetwork": false, "flags." + flag: url})})
		if err != nil {
			t.Fatal(err)
		}
		policies := 0
		for _, o := range objects {
			if o.GetKind() != "NetworkPolicy" {
				continue
			}
			policies++
			var policy networkingv1.NetworkPolicy
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &policy); err != nil {
				t.Fatal(err)
			}
			last := policy.Spec.Egress[len(policy.Spec.Egress)-1]
			if len(last.Ports) != 1 || last.Ports[0].Port.IntVal != port || len(last.To) != 0 {
				t.Errorf("%s: %s ends with %+v, want port %d", value, o.GetName(), last, port)
			}
		}
		if policies != 2 {
			t.Errorf("%d network policies, want 2", policies)
		}
	}
}
