package assets

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Supervisor builds cmd/controlplane of the checkout and returns the path of an
// executable that stays as it is for as long as anybody may run it.
//
// It is built each time, as it is part of what is being worked on; the go command
// knows whether there is anything to do, because it finds its previous output in
// place. That output is not run itself: it could not be written while it runs.
func Supervisor(ctx context.Context) (string, error) {
	checkout, err := Checkout()
	if err != nil {
		return "", err
	}
	root, err := CacheRoot()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "supervisor-"+digest([]byte(checkout)))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory: %w", err)
	}
	release, err := lockFile(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer release()
	output := filepath.Join(dir, "output")
	b := builder{module: checkout}
	if _, err := b.goTool(ctx, "build", "-mod=readonly", "-o", output, "./e2e/controlplane/cmd/controlplane"); err != nil {
		return "", fmt.Errorf("build the supervisor: %w", err)
	}
	content, err := os.ReadFile(output)
	if err != nil {
		return "", fmt.Errorf("read the supervisor: %w", err)
	}
	// What is kept for the next test is known by this name, so each choice of versions has its own.
	chosen := os.Getenv(KubernetesVariable) + "," + os.Getenv(KarpenterVariable)
	path := filepath.Join(dir, "controlplane-"+digest(slices.Concat(content, []byte(chosen))))
	if !exists(path) {
		if err := replaceFile(path, content); err != nil {
			return "", fmt.Errorf("put the supervisor into the cache: %w", err)
		}
		removeSupervisors(dir, path)
	}
	touch(path)
	return path, nil
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return fmt.Sprintf("%x", sum[:8])
}

func replaceFile(path string, content []byte) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content, 0o755); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// removeSupervisors removes those of earlier states of the checkout. One that is
// running goes on; an hour is for those that are just about to be started.
func removeSupervisors(dir, except string) {
	paths, _ := filepath.Glob(filepath.Join(dir, "controlplane-*"))
	for _, path := range paths {
		info, err := os.Stat(path)
		if err == nil && path != except && !strings.HasSuffix(path, ".new") && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(path)
		}
	}
}
