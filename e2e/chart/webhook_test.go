package chart

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// A Secret of the webhook is mounted into the Deployment's pods beside volumes of one's own,
// read-only, and its keys become the flags of the files. Spot nodes never see it.
func TestWebhookOfSecret(t *testing.T) {
	change := map[string]any{
		"webhook.secretName": "hook", "webhook.urlKey": "link", "webhook.templateKey": "template",
		"controller.volumes":      []any{map[string]any{"name": "ca", "configMap": map[string]any{"name": "ca"}}},
		"controller.volumeMounts": []any{map[string]any{"name": "ca", "mountPath": "/ca"}},
	}
	objects, err := helms(t)[1].Render(t.Context(), Release{Values: Values("both", change)})
	if err != nil {
		t.Fatal(err)
	}
	if pod := workload(t, objects, "imds"); len(pod.Spec.Volumes) > 0 || strings.Contains(strings.Join(containerArgs(t, pod), " "), "webhook") {
		t.Errorf("the DaemonSet has volumes %v, and the arguments %q", pod.Spec.Volumes, containerArgs(t, pod))
	}
	pod := workload(t, objects, "queue")
	c := pod.Spec.Containers[0]
	for _, want := range []string{"--webhook-url-file=/etc/spot-handler/webhook/link", "--webhook-template-file=/etc/spot-handler/webhook/template"} {
		if !slices.Contains(c.Args, want) {
			t.Errorf("no %s in %q", want, c.Args)
		}
	}
	if len(pod.Spec.Volumes) != 2 || len(c.VolumeMounts) != 2 {
		t.Errorf("volumes %v, mounts %v", pod.Spec.Volumes, c.VolumeMounts)
	}
	if v := pod.Spec.Volumes[0]; v.Secret == nil || v.Secret.SecretName != "hook" {
		t.Errorf("volume %v", v)
	}
	if want := (corev1.VolumeMount{Name: "webhook", MountPath: "/etc/spot-handler/webhook", ReadOnly: true}); c.VolumeMounts[0] != want {
		t.Errorf("mount %v", c.VolumeMounts[0])
	}
	if slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--webhook-headers-file") }) {
		t.Errorf("headers that nobody has asked for: %q", c.Args)
	}
}

// The network policies let a webhook out, by the port of its proxy.
func TestWebhookIsLetOut(t *testing.T) {
	for value, port := range map[string]int32{
		"webhookProxy http://proxy.example.com:3128": 3128,
		"webhookProxy http://u:p@proxy.example.com/": 80,
		"webhookProxy socks5://proxy.example.com":    1080,
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
			var policy networkingv1.NetworkPolicy
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &policy); err != nil {
				t.Fatal(err)
			}
			if o.GetLabels()["app.kubernetes.io/component"] == "imds" {
				continue // it notifies nobody
			}
			policies++
			last := policy.Spec.Egress[len(policy.Spec.Egress)-1]
			if len(last.Ports) != 1 || last.Ports[0].Port.IntVal != port || len(last.To) != 0 {
				t.Errorf("%s: %s ends with %+v, want port %d", value, o.GetName(), last, port)
			}
		}
		if policies != 1 {
			t.Errorf("%d network policies of the Deployment, want 1", policies)
		}
	}
}
