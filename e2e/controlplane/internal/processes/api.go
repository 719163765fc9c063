package processes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

const (
	// pollEvery is short compared to the seconds that everything takes to start.
	pollEvery = 50 * time.Millisecond

	// tryTimeout is long for one request.
	tryTimeout = 10 * time.Second
)

// api is an administrator's clients, without a client-side rate limit: we measure the server and the program under
// test.
type api struct {
	*kubernetes.Clientset
	dynamic  dynamic.Interface
	metadata metadata.Interface
	config   *rest.Config
}

func newAPI(kubeconfig string) (*api, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1
	a := &api{config: config}
	// Protobuf, for the built-in types only, spares the processors, which the control
	// plane shares with what we measure.
	protobuf := rest.CopyConfig(config)
	protobuf.ContentType = runtime.ContentTypeProtobuf
	protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	if a.Clientset, err = kubernetes.NewForConfig(protobuf); err != nil {
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
	return poll(ctx, "GET "+path, func(ctx context.Context) error {
		_, err := a.RESTClient().Get().AbsPath(path).DoRaw(ctx)
		return err
	})
}

// poll tries again until it succeeds.
func poll(ctx context.Context, what string, try func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		last = try(ctx)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w; last: %w", what, context.Cause(ctx), last)
	}
	return nil
}
