package processes

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// pollEvery is short compared to the seconds that everything takes to start.
const pollEvery = 50 * time.Millisecond

// api is an administrator's clients.
type api struct {
	*kubernetes.Clientset
	dynamic  dynamic.Interface
	metadata metadata.Interface
}

func newAPI(kubeconfig string) (*api, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1 // no limit
	config.Timeout = 10 * time.Second
	a := &api{}
	if a.Clientset, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	if a.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	if a.metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return a, nil
}

// createCRDs creates the definitions and waits until their resources are served.
func (a *api) createCRDs(ctx context.Context, files []string) error {
	definitions := a.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a CRD: %w", err)
		}
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(content, &definition.Object); err != nil {
			return fmt.Errorf("read the CRD of %s: %w", filepath.Base(file), err)
		}
		if _, err := definitions.Create(ctx, definition, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create the CRD of %s: %w", filepath.Base(file), err)
		}
	}
	for _, path := range []string{
		"/apis/karpenter.sh/v1/nodepools", "/apis/karpenter.sh/v1/nodeclaims", "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses",
	} {
		if err := a.waitFor(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// waitFor waits until a GET of the path succeeds.
func (a *api) waitFor(ctx context.Context, path string) error {
	return poll(ctx, "GET "+path, func() error {
		_, err := a.RESTClient().Get().AbsPath(path).DoRaw(ctx)
		return err
	})
}

// waitForHealth waits until a component's own endpoint says ok. Their certificates are
// self-signed and made when they start: there is nothing to check them against, and we
// send nothing secret.
func waitForHealth(ctx context.Context, url string) error {
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	}
	return poll(ctx, "GET "+url, func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(text)))
		}
		return nil
	})
}

func poll(ctx context.Context, what string, try func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last: %w", what, context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}
