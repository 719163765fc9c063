package processes

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
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
	certificate, key, err := selfSigned()
	if err != nil {
		return c, err
	}
	files := map[string][]byte{c.certificate(): certificate, c.key(): key}
	var tokens strings.Builder
	for _, user := range users {
		token := rand.Text()
		fmt.Fprintf(&tokens, "%s,%s,%s,system:masters\n", token, user, user)
		config := clientcmdapi.NewConfig()
		config.Clusters["spot-handler"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: certificate}
		config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
		config.Contexts["spot-handler"] = &clientcmdapi.Context{Cluster: "spot-handler", AuthInfo: user}
		config.CurrentContext = "spot-handler"
		if files[c.kubeconfig(user)], err = clientcmd.Write(*config); err != nil {
			return c, fmt.Errorf("write the kubeconfig of %s: %w", user, err)
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

// selfSigned makes a certificate that is its own authority, and its key. It is ECDSA, as RSA keys take longer to make
// than etcd takes to start.
func selfSigned() (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "kube-apiserver"},
		NotBefore:             time.Now().Add(-time.Hour), // some leeway for clocks that are set back
		NotAfter:              time.Now().Add(365 * 24 * time.Hour),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA:                  true,
		BasicConstraintsValid: true,
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:              []string{"localhost", "kubernetes.default.svc"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, fmt.Errorf("sign a certificate: %w", err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("marshal a key: %w", err)
	}
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return certificate, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), nil
}
