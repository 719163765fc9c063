package foreign

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"spot-handler/e2e/internal/assets"
	"spot-handler/e2e/internal/lacking"
)

// inPod runs a program as a pod's: it finds the API server by a service account in a fixed
// directory, which is there in a mount namespace of its own. It ends with our standard input.
const inPod = `mount -t tmpfs none /var/run && cd /var/run && mkdir -p secrets/kubernetes.io/serviceaccount && cd secrets/kubernetes.io/serviceaccount &&
printf %s "$TOKEN" >token && printf %s "$CA" >ca.crt && { "$0" "$@" & cat >/dev/null; }`

// StartHandler runs aws-node-termination-handler as its DaemonSet does on the node, with its
// defaults and the rights of the kubeconfig, until the test ends. Where no namespaces can be
// made, the test is skipped.
func StartHandler(t *testing.T, kubeconfig, node, metadataURL string) {
	t.Helper()
	apart := inNamespaces(t)
	programs, err := assets.Ensure(t.Context(), assets.Handler, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(apart[0], append(apart[1:], "sh", "-c", inPod, programs.Path(assets.NodeTerminationHandler))...)
	cmd.Env = append(os.Environ(), "TOKEN="+config.BearerToken, "CA="+string(config.CAData),
		"KUBERNETES_SERVICE_HOST="+server.Hostname(), "KUBERNETES_SERVICE_PORT="+server.Port(),
		"NODE_NAME="+node, "POD_NAME=handler", "NAMESPACE=kube-system", "INSTANCE_METADATA_URL="+metadataURL)
	Start(t, cmd)
}

// inNamespaces is how a command runs in namespaces of its own, as somebody who is allowed to make them.
func inNamespaces(t *testing.T) (command []string) {
	t.Helper()
	var why string
	for _, as := range [][]string{{"unshare"}, {"unshare", "--user", "--map-root-user"}, {"sudo", "--non-interactive", "--preserve-env", "unshare"}} {
		command = append(as, "--mount", "--pid", "--fork", "--kill-child")
		out, err := exec.Command(command[0], append(command[1:], "true")...).CombinedOutput()
		if err == nil {
			return command
		}
		why += fmt.Sprintf("\n%s: %v\n%s", as[0], err, out)
	}
	lacking.End(t, "aws-node-termination-handler does not run, as it needs namespaces of its own: %s", why)
	return nil
}
