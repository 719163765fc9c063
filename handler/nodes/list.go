package nodes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pageSize bounds how many whole Nodes are in memory at a time. Each is 10 to 20 KiB, most of
// it images and managed fields.
const pageSize = 100

// List reads all Nodes page by page, and keeps of each page only what lean leaves. It serves
// whoever looks once, and an Index where the API server does not stream the Nodes at the start
// of a watch, as up to Kubernetes 1.31 and in 1.33 (the feature gate WatchList): in one answer
// 5,000 Nodes are 100 MB. It does not pass on the caller's resource version: the API server
// never pages what it answers from its cache, and what we read instead is never older.
func List(ctx context.Context, client Client, o metav1.ListOptions) (*corev1.NodeList, error) {
	o.Limit, o.ResourceVersion, o.ResourceVersionMatch = pageSize, "", ""
	all := &corev1.NodeList{}
	for {
		page, err := client.List(ctx, o)
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			all.Items = append(all.Items, *lean(&page.Items[i]))
		}
		all.ListMeta = metav1.ListMeta{ResourceVersion: page.ResourceVersion}
		if page.Continue == "" {
			return all, nil
		}
		o.Continue = page.Continue
	}
}
