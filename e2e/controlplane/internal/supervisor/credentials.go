package supervisor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const credentialsName = "credentials"

// Every component has a name of its own, for the audit log, and may do everything: the
// control plane's rights are not under test here. The admin is the user of the kubeconfig
// that we hand out.
const admin = "admin"

var users = []string{admin, "kube-controller-manager", "kube-scheduler", "kwok", "karpenter"}

// credentials are the files by which the apiserver and its clients trust each other. They
// live as long as the control plane. They are ECDSA, as RSA keys take longer to make than
// etcd takes to start.
type credentials struct {
	dir        string
	server     string // URL of the apiserver
	caPEM      []byte
	adminToken string
}

func (c credentials) path(name string) string       { return filepath.Join(c.dir, name) }
func (c credentials) kubeconfig(user string) string { return c.path(user + ".kubeconfig") }

func writeCredentials(dir, server string) (c credentials, err error) {
	c = credentials{dir: dir, server: server}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return c, fmt.Errorf("make the directory of the credentials: %w", err)
	}
	ca, caKey, err := c.certificate("ca", &x509.Certificate{
		Subject:               pkix.Name{CommonName: "spot-handler-e2e"},
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}, nil, nil)
	if err != nil {
		return c, err
	}
	if _, _, err = c.certificate("apiserver", &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
	}, ca, caKey); err != nil {
		return c, err
	}
	// Only the key of this pair is used: it signs and checks service account tokens.
	if _, _, err = c.certificate("service-account", &x509.Certificate{}, ca, caKey); err != nil {
		return c, err
	}
	if c.caPEM, err = os.ReadFile(c.path("ca.crt")); err != nil {
		return c, fmt.Errorf("read the certificate of the CA: %w", err)
	}
	var tokens strings.Builder
	for _, user := range users {
		token := rand.Text()
		if user == admin {
			c.adminToken = token
		}
		fmt.Fprintf(&tokens, "%s,%s,%s,system:masters\n", token, user, user)
		if err := c.writeKubeconfig(c.kubeconfig(user), user, token); err != nil {
			return c, err
		}
	}
	if err := os.WriteFile(c.path("tokens.csv"), []byte(tokens.String()), 0o600); err != nil {
		return c, fmt.Errorf("write the tokens: %w", err)
	}
	return c, nil
}

// certificate writes <name>.crt and <name>.key, signed by the parent or by itself.
func (c credentials) certificate(name string, template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate the key of %s: %w", name, err)
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		return nil, nil, fmt.Errorf("generate the serial number of %s: %w", name, err)
	}
	template.NotBefore = time.Now().Add(-time.Hour) // some leeway for clocks that are set back
	template.NotAfter = time.Now().Add(365 * 24 * time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("parse the certificate of %s: %w", name, err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("marshal the key of %s: %w", name, err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der},
		name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		if err := os.WriteFile(c.path(file), pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, nil, fmt.Errorf("write %s: %w", file, err)
		}
	}
	return certificate, key, nil
}

func (c credentials) writeKubeconfig(path, user, token string) error {
	content := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: spot-handler
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: %s
  user:
    token: %s
contexts:
- name: spot-handler
  context:
    cluster: spot-handler
    user: %s
current-context: spot-handler
`, c.server, base64.StdEncoding.EncodeToString(c.caPEM), user, token, user)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	return nil
}
