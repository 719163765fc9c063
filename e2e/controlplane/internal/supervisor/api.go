package supervisor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// pollEvery is short compared to the seconds that everything takes to start.
const pollEvery = 50 * time.Millisecond

// api speaks to the apiserver in plain HTTP and YAML: this binary is built at the start
// of every test run, which takes no time without client-go.
type api struct {
	server, token string
	client        *http.Client
}

func newAPI(c credentials) *api {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.caPEM)
	return &api{
		server: c.server,
		token:  c.adminToken,
		client: &http.Client{
			Timeout:   10 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: deletionsAtOnce},
		},
	}
}

func (a *api) do(ctx context.Context, method, path string, body []byte) error {
	_, _, err := a.request(ctx, method, path, "*/*", "application/yaml", body)
	return err
}

// request returns the answer, and its status where there was one.
func (a *api) request(ctx context.Context, method, path, accept, contentType string, body []byte) (text []byte, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, method, a.server+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, fmt.Errorf("make a request: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", accept)
	response, err := a.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(response.Body); err != nil {
		return nil, response.StatusCode, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode >= 300 {
		return nil, response.StatusCode, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, strings.TrimSpace(string(text)))
	}
	return text, response.StatusCode, nil
}

// createCRDs creates the definitions and waits until their resources are served.
func (a *api) createCRDs(ctx context.Context, files []string) error {
	const collection = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read a CRD: %w", err)
		}
		if err := a.do(ctx, http.MethodPost, collection, content); err != nil {
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
	return poll(ctx, "GET "+path, func() error { return a.do(ctx, http.MethodGet, path, nil) })
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
