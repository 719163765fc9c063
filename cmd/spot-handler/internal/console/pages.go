package console

import (
	"context"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// pageSize bounds how many whole objects a command has in memory at a time.
const pageSize = 500

// Pages calls use for each page of a list, of one namespace or of all. An error names the resource.
func Pages[T any, List interface {
	*T
	runtime.Object
	metav1.ListInterface
}](ctx context.Context, client rest.Interface, namespace, resource, selector string, use func(List)) error {
	for next := ""; ; {
		page := List(new(T))
		err := client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(resource).
			Param("labelSelector", selector).Param("limit", strconv.Itoa(pageSize)).Param("continue", next).Do(ctx).Into(page)
		if err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		use(page)
		if next = page.GetContinue(); next == "" {
			return nil
		}
	}
}

// Objects calls use for each object of a list that has no Go type here. An error names the resource.
func Objects(ctx context.Context, client dynamic.ResourceInterface, resource, selector string, use func(*unstructured.Unstructured)) error {
	for o := (metav1.ListOptions{LabelSelector: selector, Limit: pageSize}); ; {
		page, err := client.List(ctx, o)
		if err != nil {
			return fmt.Errorf("list %s: %w", resource, err)
		}
		for i := range page.Items {
			use(&page.Items[i])
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			return nil
		}
	}
}
