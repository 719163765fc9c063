package foreign

import (
	"net/url"
	"os"
	"os/exec"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"spot-handler/e2e/internal/assets"
)

// inPod runs a program as a pod's: it finds the API server by a service account in a fixed
// directory, which is there in a mount namespace of its own. It ends with our standard input.
const inPod = `mount -t tmpfs none /var/run && cd /var/run && mkdir -p secrets/kubernetes.io/serviceaccount && cd secrets/kubernetes.io/serviceaccount &&
printf %s "$TOKEN" >token && printf %s "$CA" >ca.crt && { "$0" "$@" & cat >/dev/null; }`

// StartHandler runs aws-node-termination-handler as its DaemonSet does on the node, with its
// defaults and the rights of the kubeconfig, until the test ends. The test is skipped where no
// namespaces can be made.
func StartHandler(t *testing.T, kubeconfig, node, metadataURL string) {
	t.Helper()
	namespaces := []string{"--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child"}
	if out, err := exec.Command("unshare", append(namespaces, "true")...).CombinedOutput(); err != nil {
		t.Skipf("aws-node-termination-handler needs namespaces of its own: %v: %s", err, out)
	}
	programs, err := assets.EnsureHandler(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	ca := config.CAData
	if config.CAFile != "" {
		if ca, err = os.ReadFile(config.CAFile); err != nil {
			t.Fatal(err)
		}
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", append(namespaces, "sh", "-c", inPod, programs.Path(assets.NodeTerminationHandler))...)
	cmd.Env = append(os.Environ(), "TOKEN="+config.BearerToken, "CA="+string(ca),
		"KUBERNETES_SERVICE_HOST="+server.Hostname(), "KUBERNETES_SERVICE_PORT="+server.Port(),
		"NODE_NAME="+node, "POD_NAME=handler", "NAMESPACE=kube-system", "INSTANCE_METADATA_URL="+metadataURL)
	Start(t, cmd)
}
