package image

import (
	"bytes"
	"context"
	"crypto/x509"
	"debug/elf"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	version = "v9.8.7-test"
	commit  = "0123456789ab"

	// most is what an image may weigh, unpacked: a spot node pulls it in its first seconds,
	// and until then nobody watches for its notice.
	most = 36_000_000
)

// The image of each architecture has the binary, static and of that architecture, and CA
// certificates, and nothing else; it runs as nobody in particular and knows its version.
func TestImage(t *testing.T) {
	b := store(t)
	checkout, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	base, shared := b.builder(), volumes(t, checkout)
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		name := "localhost/spot-handler:" + arch
		b.do(append([]string{
			"build", "--isolation=chroot", "--pull=never", "--platform=linux/" + arch, "--build-arg=BUILDPLATFORM=" + ownPlatform(),
			"--build-arg=BUILDER=" + base, "--build-arg=VERSION=" + version, "--build-arg=COMMIT=" + commit, "--tag=" + name,
		}, append(slices.Clone(shared), checkout)...)...)
		image := b.unpack(name)
		t.Logf("%s: %.1f MB", arch, float64(image.size)/1e6)

		if image.Architecture != arch {
			t.Errorf("%s: the image says %s", arch, image.Architecture)
		}
		if image.size > most {
			t.Errorf("%s: %d bytes, want %d at most", arch, image.size, most)
		}
		if image.Config.User != "65532:65532" || !slices.Equal(image.Config.Entrypoint, []string{"/spot-handler"}) {
			t.Errorf("%s: user %q, entrypoint %q", arch, image.Config.User, image.Config.Entrypoint)
		}
		if got := image.Config.Labels; got["org.opencontainers.image.version"] != version || got["org.opencontainers.image.revision"] != commit {
			t.Errorf("%s: labels %v", arch, got)
		}
		files := slices.Sorted(maps.Keys(image.files))
		if want := []string{"etc/ssl/certs/ca-certificates.crt", "spot-handler"}; !slices.Equal(files, want) {
			t.Fatalf("%s: files %v, want %v", arch, files, want)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(image.files["etc/ssl/certs/ca-certificates.crt"]) {
			t.Errorf("%s: no CA certificate can be read", arch)
		}
		binary := image.files["spot-handler"]
		static(t, arch, machine, binary)
		if !bytes.Contains(binary, []byte(version)) || !bytes.Contains(binary, []byte(commit)) {
			t.Errorf("%s: the binary holds neither version nor commit", arch)
		}
		if arch == runtime.GOARCH {
			container := strings.TrimSpace(b.do("from", "--pull=never", name))
			if said := b.do("run", "--isolation=chroot", container, "--", "/spot-handler", "--version"); !strings.HasPrefix(said, "spot-handler "+version+" ("+commit) {
				t.Errorf("--version in the image says %q", said)
			}
			buildInfo(t, binary)
		}
	}
}

// static: it needs no loader and no library, which the image does not have.
func static(t *testing.T, arch string, machine elf.Machine, binary []byte) {
	t.Helper()
	file, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		t.Fatal(err)
	}
	if file.Machine != machine {
		t.Errorf("%s: the binary is for %s", arch, file.Machine)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s: the binary is not static: it has a segment %s", arch, p.Type)
		}
	}
}

// buildInfo runs the binary, with nothing there that it could talk to, for its metric.
func buildInfo(t *testing.T, binary []byte) {
	t.Helper()
	const nobody = "http://127.0.0.1:9" // the discard port, which nothing serves
	dir := t.TempDir()
	path, kubeconfig := filepath.Join(dir, "spot-handler"), filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(path, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kubeconfig, []byte(`{"current-context":"a","contexts":[{"name":"a","context":{"cluster":"a"}}],`+
		`"clusters":[{"name":"a","cluster":{"server":"`+nobody+`"}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "queue", "--queue-url="+nobody+"/1/q", "--kubeconfig="+kubeconfig, "--http-addr=127.0.0.1:0")
	cmd.Env = []string{"AWS_REGION=eu-west-1", "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test"}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	var said []byte
	address := regexp.MustCompile(`"http_addr":"([^"]+)"`)
	for buffer := make([]byte, 4096); address.FindSubmatch(said) == nil; {
		n, err := stderr.Read(buffer)
		said = append(said, buffer[:n]...)
		if err != nil {
			t.Fatalf("the binary does not start: %v: %s", err, said)
		}
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	response, err := http.Get("http://" + string(address.FindSubmatch(said)[1]) + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	if info := regexp.MustCompile(`(?m)^spot_handler_build_info.*$`).Find(text); !bytes.Contains(info, []byte(`version="`+version+`"`)) || !bytes.Contains(info, []byte(`commit="`+commit+`"`)) {
		t.Errorf("build_info is %q", info)
	}
}
