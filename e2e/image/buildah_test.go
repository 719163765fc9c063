package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"spot-handler/e2e/internal/lacking"
)

// buildah works in a store of its own, which goes with the test.
type buildah struct {
	*testing.T
	dir string
}

// store makes an empty store, or says why there is none to be had.
func store(t *testing.T) buildah {
	t.Helper()
	if _, err := exec.LookPath("buildah"); err != nil {
		lacking.End(t, "no image is built: %v", err)
	}
	b := buildah{T: t, dir: t.TempDir()}
	t.Cleanup(func() {
		// Without root the files are of users that only buildah can act for.
		_, _ = b.try("rm", "--all")
		_, _ = b.try("rmi", "--all", "--force")
	})
	if out, err := b.try("from", "--name=probe", "scratch"); err != nil {
		lacking.End(t, "no image is built, as buildah is not allowed to: %v\n%s", err, out)
	}
	return b
}

func (b buildah) try(args ...string) (string, error) {
	// Neither a kernel's overlay nor namespaces of one's own are to be had everywhere.
	cmd := exec.Command("buildah", append([]string{
		"--root=" + filepath.Join(b.dir, "root"), "--runroot=" + filepath.Join(b.dir, "run"), "--storage-driver=vfs",
	}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (b buildah) do(args ...string) string {
	b.Helper()
	out, err := b.try(args...)
	if err != nil {
		b.Fatalf("buildah %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// builder commits the base of the build stage: a shell and CA certificates of this
// machine. Go and the modules are mounted, see volumes.
func (b buildah) builder() string {
	b.Helper()
	root := filepath.Join(b.dir, "base")
	libraries, err := exec.Command("ldd", "/bin/sh").CombinedOutput() // an error: it is static
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) {
		b.Fatal(err)
	}
	files := append(regexp.MustCompile(`/[^\s:]+`).FindAllString(string(libraries), -1), "/bin/sh", certificates(b.T))
	for _, file := range files {
		to := filepath.Join(root, file)
		if strings.HasPrefix(file, "/etc/") {
			to = filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")
		}
		copyFile(b.T, file, to)
	}
	if err := os.MkdirAll(filepath.Join(root, "tmp"), 0o777); err != nil {
		b.Fatal(err)
	}
	const name = "localhost/builder"
	b.do("copy", "probe", root, "/")
	b.do("config", "--env=PATH=/usr/local/go/bin:/bin", "--env=HOME=/tmp",
		"--env=GOTOOLCHAIN=local", "--env=GOFLAGS=-buildvcs=false", "--env=GOCACHE=/cache",
		// The modules of this machine's cache, which have been checked against go.sum's like.
		"--env=GOMODCACHE=/modules", "--env=GOPROXY=off", "--env=GOSUMDB=off", "probe")
	b.do("commit", "--quiet", "probe", name)
	return name
}

// volumes are what the build stage shares with this machine. The Dockerfile downloads all that
// go.mod names, which is more than a build needs and a machine may have: this does so first.
func volumes(t *testing.T, checkout string) []string {
	t.Helper()
	download := exec.CommandContext(t.Context(), "go", "mod", "download")
	download.Dir = checkout
	download.Env = append(os.Environ(), "GOWORK=off", "PWD="+checkout)
	if out, err := download.CombinedOutput(); err != nil {
		t.Fatalf("download the modules that the image is built from: %v\n%s", err, out)
	}
	return []string{
		"--volume=" + goEnv(t, "GOROOT") + ":/usr/local/go:ro",
		"--volume=" + goEnv(t, "GOMODCACHE") + ":/modules",
		"--volume=" + goEnv(t, "GOCACHE") + ":/cache",
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		t.Fatalf("go env %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

// certificates is where this machine has them.
func certificates(t *testing.T) string {
	t.Helper()
	for _, file := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"} {
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	lacking.End(t, "no image is built: this machine has no CA certificates")
	return ""
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, content, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// content is an image, unpacked.
type content struct {
	Architecture string
	Config       struct {
		User       string
		Entrypoint []string
		Env        []string
		Labels     map[string]string
	}
	files map[string][]byte // regular ones
	size  int64             // of all of them
}

// unpack reads the image in the form in which it goes to a registry.
func (b buildah) unpack(image string) content {
	b.Helper()
	archive := filepath.Join(b.dir, "image.tar")
	_ = os.Remove(archive) // buildah does not overwrite
	b.do("push", image, "docker-archive:"+archive)
	text, err := os.ReadFile(archive)
	if err != nil {
		b.Fatal(err)
	}
	entries := b.readTar(text)
	var manifests []struct {
		Config string
		Layers []string
	}
	b.decode(entries["manifest.json"], &manifests)
	if len(manifests) != 1 {
		b.Fatalf("%d images in one archive", len(manifests))
	}
	found := content{files: map[string][]byte{}}
	b.decode(entries[manifests[0].Config], &found)
	for _, layer := range manifests[0].Layers {
		for name, file := range b.readTar(entries[layer]) {
			found.files[name] = file
			found.size += int64(len(file))
		}
	}
	return found
}

func (b buildah) decode(text []byte, to any) {
	b.Helper()
	if err := json.Unmarshal(text, to); err != nil {
		b.Fatalf("read %q: %v", text, err)
	}
}

func (b buildah) readTar(text []byte) map[string][]byte {
	b.Helper()
	files := map[string][]byte{}
	for archive := tar.NewReader(bytes.NewReader(text)); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			b.Fatal(err)
		}
		switch header.Typeflag {
		case tar.TypeDir:
		case tar.TypeReg:
			if files[path.Clean("/" + header.Name)[1:]], err = io.ReadAll(archive); err != nil {
				b.Fatal(err)
			}
		default:
			files[path.Clean("/" + header.Name)[1:]] = []byte(header.Linkname)
		}
	}
}

// ownPlatform is the one that the build stage runs on.
func ownPlatform() string { return "linux/" + runtime.GOARCH }
