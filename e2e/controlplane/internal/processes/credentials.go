package processes

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
)

const credentialsName = "credentials"

// Every component has a name of its own, for the audit log, and may do everything: the
// control plane's rights are not under test here. The admin is the user of the kubeconfig
// that we hand out.
const admin = "admin"

var users = []string{admin, "kube-controller-manager", "kube-scheduler", "kwok", "karpenter"}

// credentials are the files by which the apiserver and its clients trust each other. They
// live as long as the control plane.
type credentials struct {
	dir string
}

func (c credentials) path(name string) string       { return filepath.Join(c.dir, name) }
func (c credentials) certificate() string           { return c.path("apiserver.crt") }
func (c credentials) key() string                   { return c.path("apiserver.key") }
func (c credentials) tokens() string                { return c.path("tokens.csv") }
func (c credentials) kubeconfig(user string) string { return c.path(user + ".kubeconfig") }

// writeCredentials writes those of an apiserver of that URL. Its key also signs the tokens of service accounts.
func writeCredentials(dir, server string) (credentials, error) {
	c := credentials{dir}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return c, fmt.Errorf("make the directory of the credentials: %w", err)
	}
	pair, err := serverKeyPair()
	if err != nil {
		return c, err
	}
	files := map[string][]byte{c.certificate(): pair.certificate, c.key(): pair.key}
	var tokens strings.Builder
	for _, user := range users {
		token := rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%s,system:masters\n", token, user, user)
		if err := WriteKubeconfig(c.kubeconfig(user), server, pair.certificate, clientcmdapi.AuthInfo{Token: token}); err != nil {
			return c, err
		}
	}
	files[c.tokens()] = []byte(tokens.String())
	for path, content := range files {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return c, fmt.Errorf("write the credentials: %w", err)
		}
	}
	return c, nil
}

// WriteKubeconfig writes one of a server, whose certificate or its issuer's is given as PEM, and of a user.
func WriteKubeconfig(path, server string, ca []byte, user clientcmdapi.AuthInfo) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["spot-handler"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos["spot-handler"] = &user
	config.Contexts["spot-handler"] = &clientcmdapi.Context{Cluster: "spot-handler", AuthInfo: "spot-handler"}
	config.CurrentContext = "spot-handler"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}

// keyPair is a certificate and its key, as PEM.
type keyPair struct{ certificate, key []byte }

// serverKeyPair is that of all apiservers of this process: to make one takes a fifth of a second.
var serverKeyPair = sync.OnceValues(func() (keyPair, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"kubernetes.default.svc"})
	if err != nil {
		return keyPair{}, fmt.Errorf("make the certificate of the apiserver: %w", err)
	}
	return keyPair{certificate, key}, nil
})
