package chart

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// recipes are the blocks of values on the page of recipes, by the comment on their first line, and the
// values within the objects of Argo CD and Flux, by their kinds.
func recipes(t *testing.T) map[string]map[string]any {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "deploy", "docs", "install-on.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]map[string]any{}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		name, _, _ := strings.Cut(strings.TrimPrefix(block[1], "# "), "\n")
		if strings.HasPrefix(block[1], "# ") {
			var values map[string]any
			if err := yaml.UnmarshalStrict([]byte(block[1]), &values); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			found[name] = values
			continue
		}
		objects, err := Objects(block[1])
		if err != nil {
			t.Error(err)
		}
		for _, o := range objects {
			for _, path := range [][]string{{"spec", "source", "helm", "valuesObject"}, {"spec", "values"}} {
				if values, ok, _ := unstructured.NestedMap(o.Object, path...); ok {
					found[o.GetKind()] = values
				}
			}
		}
	}
	return found
}

// Every recipe is rendered. Those that leave out what others have are taken for changes of theirs.
func TestRecipes(t *testing.T) {
	all := recipes(t)
	for _, want := range []string{
		"karpenter", "managed node groups", "cluster autoscaler", "irsa", "Application", "HelmRelease", "fips", "proxy",
		"auto mode", "annotations", "datadog",
	} {
		values, ok := all[want]
		if !ok {
			t.Errorf("no recipe %q", want)
			continue
		}
		delete(all, want)
		if image, ok, _ := unstructured.NestedString(values, "image", "repository"); ok && image != "REGISTRY/spot-handler" {
			t.Errorf("%s: image %s", want, image)
		}
		set(values, "image.repository", "registry.example.com/spot-handler")
		if values["mode"] == nil && want != "auto mode" {
			set(values, "mode", "both")
			set(values, "flags.queueUrl", QueueURL)
		}
		objects := render(t, Release{Values: values})
		promises := map[string]func(*testing.T, []unstructured.Unstructured){"proxy": proxied, "datadog": scraped, "annotations": annotated}
		if check := promises[want]; check != nil {
			check(t, objects)
		}
	}
	for name := range all {
		t.Errorf("recipe %q is not tested", name)
	}
}

// proxied: requests to AWS go through the proxy, and those to what is in the cluster or on the node
// don't.
func proxied(t *testing.T, objects []unstructured.Unstructured) {
	for _, e := range workload(t, objects, "queue").Spec.Containers[0].Env {
		if strings.HasSuffix(e.Name, "_PROXY") {
			t.Setenv(e.Name, e.Value)
		}
	}
	t.Setenv("HTTP_PROXY", os.Getenv("HTTPS_PROXY")) // which many set too
	for to, want := range map[string]bool{
		"https://sqs.eu-west-1.amazonaws.com": true, "https://172.20.0.1": false, "http://169.254.169.254": false, "http://169.254.170.23": false,
		"https://[fd00:ec2::254]": false, "https://[fd00:ec2::23]": false, "https://[fd00:ec2::1]": true,
	} {
		u, err := url.Parse(to)
		if err != nil {
			t.Fatal(err)
		}
		proxy, err := http.ProxyFromEnvironment(&http.Request{URL: u})
		if err != nil || (proxy != nil) != want {
			t.Errorf("requests to %s go through %v, want a proxy: %t (%v)", to, proxy, want, err)
		}
	}
}

// scraped: the annotation names a container that exists and its port, in JSON.
func scraped(t *testing.T, objects []unstructured.Unstructured) {
	pod := workload(t, objects, "queue")
	c := pod.Spec.Containers[0]
	var checks struct {
		Openmetrics struct {
			Instances []struct {
				Endpoint string `json:"openmetrics_endpoint"`
			}
		}
	}
	err := json.Unmarshal([]byte(pod.Annotations["ad.datadoghq.com/"+c.Name+".checks"]), &checks)
	if err != nil || len(checks.Openmetrics.Instances) != 1 {
		t.Fatalf("annotations %v: %v", pod.Annotations, err)
	}
	u, err := url.Parse(strings.Replace(checks.Openmetrics.Instances[0].Endpoint, "%%host%%", "host", 1))
	if err != nil || u.Path != "/metrics" || !servesOn(c, u.Port()) {
		t.Errorf("endpoint %v of ports %v: %v", u, c.Ports, err)
	}
}

// annotated: both kinds of pods name the port that they serve on.
func annotated(t *testing.T, objects []unstructured.Unstructured) {
	for _, component := range []string{"imds", "queue"} {
		pod := workload(t, objects, component)
		port := pod.Annotations["prometheus.io/port"]
		if pod.Annotations["prometheus.io/scrape"] != "true" || !servesOn(pod.Spec.Containers[0], port) {
			t.Errorf("%s: port %s of %v", component, port, pod.Spec.Containers[0].Ports)
		}
	}
}

func servesOn(c corev1.Container, port string) bool {
	return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return fmt.Sprint(p.ContainerPort) == port })
}
