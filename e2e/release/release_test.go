package release

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"spot-handler/e2e/chart"
	"spot-handler/e2e/internal/assets"
)

func checkout(t *testing.T) string {
	t.Helper()
	dir, err := assets.Checkout()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// `make release` as the workflow calls it, for the platform of this machine.
func TestRelease(t *testing.T) {
	const version = "v9.8.7-rc.1"
	dist, platform := t.TempDir(), runtime.GOOS+"-"+runtime.GOARCH
	make := func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "make", append([]string{"-C", checkout(t), "release", "DIST=" + dist}, args...)...)
		cmd.Env = append(os.Environ(), "PLATFORMS="+runtime.GOOS+"/"+runtime.GOARCH, "MAKEFLAGS=", "MAKELEVEL=")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, wrong := range []string{"1.2.3", "v1.2", "v1.2.3+build", "v01.2.3", "latest"} {
		if out, err := make("VERSION=" + wrong); err == nil || !strings.Contains(out, "want one such as v1.2.3") {
			t.Errorf("VERSION=%s: %v\n%s", wrong, err, out)
		}
	}
	if out, err := make("VERSION=" + version); err != nil {
		t.Fatalf("make release: %v\n%s", err, out)
	}

	binary, archive := "spot-handler-"+version+"-"+platform, "spot-handler-9.8.7-rc.1.tgz"
	plugin := "kubectl-spot_handler-" + version + "-" + platform + ".tar.gz"
	want := []string{"SHA256SUMS", "notes.md", archive, binary, plugin, manifest}
	slices.Sort(want)
	var got []string
	entries, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("files %v, want %v", got, want)
	}

	var sums strings.Builder
	for _, name := range []string{plugin, archive, binary, manifest} {
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(read(t, filepath.Join(dist, name))), name)
	}
	if got := string(read(t, filepath.Join(dist, "SHA256SUMS"))); got != sums.String() {
		t.Errorf("checksums:\n%swant\n%s", got, sums.String())
	}

	said, err := exec.CommandContext(t.Context(), filepath.Join(dist, binary), "--version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(said), "spot-handler "+version+" (") {
		t.Errorf("--version says %q: %v", said, err)
	}

	checkPlugin(t, dist, version, plugin)

	// The image that the chart names by default is that of the same release.
	helms, err := chart.Helms(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	text, err := helms[0].Run(t.Context(), "", "show", "chart", filepath.Join(dist, archive))
	if err != nil {
		t.Fatal(err)
	}
	var about struct{ Version, AppVersion string }
	if err := yaml.Unmarshal([]byte(text), &about); err != nil || about.Version != "9.8.7-rc.1" || about.AppVersion != version {
		t.Errorf("the chart says %+v: %v", about, err)
	}
	if notes := string(read(t, filepath.Join(dist, "notes.md"))); !strings.HasPrefix(notes, "## "+version+"\n") {
		t.Errorf("the notes are %q", notes)
	}
}

// manifest is krew's.
const manifest = "spot-handler.yaml"

// checkPlugin installs from the manifest as krew does, and has kubectl's name find the program and
// its completion.
// https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
func checkPlugin(t *testing.T, dist, version, archive string) {
	t.Helper()
	var m struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, Homepage, ShortDescription, Description string

			Platforms []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, SHA256, Bin string
			}
		}
	}
	if err := yaml.UnmarshalStrict(read(t, filepath.Join(dist, manifest)), &m); err != nil {
		t.Fatal(err)
	}
	if m.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || m.Kind != "Plugin" || m.Metadata.Name != "spot-handler" ||
		m.Spec.Version != version || m.Spec.ShortDescription == "" || len(m.Spec.ShortDescription) > 50 || len(m.Spec.Platforms) != 1 {
		t.Fatalf("the manifest is %+v", m)
	}
	p := m.Spec.Platforms[0]
	if got := p.Selector.MatchLabels; got["os"] != runtime.GOOS || got["arch"] != runtime.GOARCH || p.URI != m.Spec.Homepage+"/releases/download/"+version+"/"+archive ||
		p.SHA256 != fmt.Sprintf("%x", sha256.Sum256(read(t, filepath.Join(dist, archive)))) {
		t.Errorf("the platform is %+v", p)
	}
	for page, command := range map[string]string{
		"README.md":               "git clone " + m.Spec.Homepage + " ",
		"deploy/docs/commands.md": "kubectl krew install --manifest-url=" + m.Spec.Homepage + "/releases/download/v0.1.0/" + manifest + "\n",
	} {
		if !strings.Contains(string(read(t, filepath.Join(checkout(t), page))), command) {
			t.Errorf("%s does not say %q", page, command)
		}
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dist, archive), "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("unpack %s: %v\n%s", archive, err, out)
	}
	for want, args := range map[string][]string{
		"kubectl spot-handler status": {p.Bin, "status", "--help"},
		"observe\t":                   {"kubectl_complete-spot_handler", "ob"},
	} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, args[0]), args[1:]...)
		cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q says %q, want %q: %v", args, out, want, err)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
