package controlplane

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"spot-handler/e2e/controlplane/internal/processes"
)

// ServiceAccountConfig is for clients that act as a service account, which must exist:
// they have only its rights and, unlike an administrator's clients, are subject to the
// apiserver's priority and fairness. With a pod, which must run as that account, the
// token is bound to the pod and names its node.
func (c *Cluster) ServiceAccountConfig(ctx context.Context, namespace, name, pod string) (*rest.Config, error) {
	request := &authenticationv1.TokenRequest{}
	if pod != "" {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod}
	}
	token, err := c.Client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("request a token of service account %s/%s: %w", namespace, name, err)
	}
	config := rest.AnonymousClientConfig(c.RESTConfig())
	config.BearerToken = token.Status.Token
	return config, nil
}

// WriteKubeconfig writes one of a server, whose certificate is given as PEM, and of a user.
func WriteKubeconfig(path, server string, ca []byte, user clientcmdapi.AuthInfo) error {
	return processes.WriteKubeconfig(path, server, ca, user)
}

// WriteKubeconfig writes one for the service account, with a token as that of
// ServiceAccountConfig and nothing else.
func (c *Cluster) WriteKubeconfig(ctx context.Context, path, namespace, account, pod string) error {
	config, err := c.ServiceAccountConfig(ctx, namespace, account, pod)
	if err != nil {
		return err
	}
	return WriteKubeconfig(path, config.Host, config.CAData, clientcmdapi.AuthInfo{Token: config.BearerToken})
}

// waitServiceAccount waits for an account that the controller manager makes: no pod can
// be created before that.
func (c *Cluster) waitServiceAccount(ctx context.Context, namespace, name string) error {
	accounts := c.Client.CoreV1().ServiceAccounts(namespace)
	_, err := until(ctx, named(name, accounts.List, accounts.Watch), nil, func(account *corev1.ServiceAccount) bool { return account != nil })
	if err != nil {
		return fmt.Errorf("wait for service account %s/%s: %w", namespace, name, err)
	}
	return nil
}
