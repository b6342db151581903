package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/certificate/csr"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/kubelet"
)

// KubeletConfig is a kubelet that runs alone.
type KubeletConfig struct {
	kubelet.Config
	// Healthz is the address of /healthz, over plain HTTP as upstream's; empty: none.
	Healthz string
}

// RunKubelet runs a kubelet alone until ctx ends. Its pods go on.
func RunKubelet(ctx context.Context, c KubeletConfig) error {
	k, err := kubelet.New(c.Config)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	group := component.NewGroup(c.Logger)
	group.Add(component.Member{Name: "healthz", Component: plainServer(c.Healthz, mux, c.Logger), Background: true})
	group.Add(component.Member{Name: Kubelet, Component: k, Background: true})
	group.Add(trim())
	return group.Run(ctx)
}

// Fixed is the certificate, whoever asks.
func Fixed(cert tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
}

// signingTimeout is how long a certificate is waited for before the request is made anew by
// the next start.
const signingTimeout = 15 * time.Minute

// BootstrapKubeconfig makes a node's kubeconfig unless it is there: with the credentials of
// another it requests a client certificate and waits until that is signed.
func BootstrapKubeconfig(with, path, node string, log *slog.Logger) error {
	if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", with)
	if err != nil {
		return fmt.Errorf("--bootstrap-kubeconfig: %w", err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("--bootstrap-kubeconfig: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("make the node's key: %w", err)
	}
	subject := pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		return fmt.Errorf("make the certificate request: %w", err)
	}
	request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})
	ctx, cancel := context.WithTimeout(context.Background(), signingTimeout)
	defer cancel()
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", certificatesv1.KubeAPIServerClientKubeletSignerName, nil,
		[]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}, key)
	if err != nil {
		return fmt.Errorf("request the node's certificate: %w", err)
	}
	log.Info("waiting for the node's certificate", "request", name)
	cert, err := csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return fmt.Errorf("wait for the node's certificate (kubectl certificate approve %s): %w", name, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the node's key: %w", err)
	}
	own := clientcmdapi.NewConfig()
	own.Clusters["default"] = &clientcmdapi.Cluster{
		Server: cfg.Host, TLSServerName: cfg.ServerName, InsecureSkipTLSVerify: cfg.Insecure,
		CertificateAuthority: cfg.CAFile, CertificateAuthorityData: cfg.CAData,
	}
	own.AuthInfos["default"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: cert, ClientKeyData: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}
	own.Contexts["default"] = &clientcmdapi.Context{Cluster: "default", AuthInfo: "default"}
	own.CurrentContext = "default"
	text, err := clientcmd.Write(*own)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return writeDurably(path, text, 0o600)
}
