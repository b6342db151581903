package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/kubelet"
	"github.com/skiff-k8s/skiff/kubelet/certificates"
)

// KubeletConfig is a kubelet that runs alone.
type KubeletConfig struct {
	kubelet.Config
	// Healthz is the address of /healthz, over plain HTTP as upstream's; empty: none.
	Healthz string

	// renewed are the certificates that it renews itself; nil: none.
	renewed *NodeCredentials
}

// Renew has the kubelet renew its client certificate, its serving certificate or both, in
// dir under upstream's names. It is called before clients are made of conf, which then shows
// the newest client certificate.
func (c *KubeletConfig) Renew(dir string, conf *rest.Config, client, serving bool) error {
	k := &NodeCredentials{conns: newConnections()}
	if client {
		store := certificates.Current{Dir: dir, Name: clientName}
		if err := seed(store, conf); err != nil {
			return err
		}
		k.client = store
		conf.CertFile, conf.KeyFile, conf.CertData, conf.KeyData = store.Path(), store.Path(), nil, nil
		conf.Dial = k.conns.DialContext
	}
	if serving {
		k.serving = certificates.Current{Dir: dir, Name: servingName}
	}
	c.renewed = k
	return nil
}

// seed stores the certificate of a kubeconfig unless there is a newer one already.
func seed(store certificates.Current, conf *rest.Config) error {
	if have, err := store.Load(); err == nil && time.Now().Before(have.Leaf.NotAfter) {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := rest.LoadTLSFiles(conf); err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	if len(conf.CertData) == 0 {
		return errors.New("--kubeconfig holds no client certificate that could be renewed; leave out rotateCertificates")
	}
	return store.Save(conf.CertData, conf.KeyData)
}

// RunKubelet runs a kubelet alone until ctx ends. Its pods go on.
func RunKubelet(ctx context.Context, c KubeletConfig) error {
	group := component.NewGroup(c.Logger)
	if c.renewed != nil && c.Client != nil {
		n := &NodeConfig{NodeName: c.NodeName}
		for _, ip := range c.NodeIPs {
			n.NodeIPs = append(n.NodeIPs, netip.MustParseAddr(ip))
		}
		members, err := c.renewed.renewal(n, c.Client, c.Logger)
		if err != nil {
			return err
		}
		if c.renewed.serving != nil {
			c.GetCertificate = c.renewed.GetCertificate
		}
		for _, m := range members {
			m.Background = true
			group.Add(m)
		}
	}
	k, err := kubelet.New(c.Config)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	group.Add(component.Member{Name: "healthz", Component: plainServer(c.Healthz, mux, c.Logger), Background: true})
	group.Add(component.Member{Name: Kubelet, Component: k, Background: true})
	group.Add(trim())
	return group.Run(ctx)
}

// Fixed is the certificate, whoever asks.
func Fixed(cert tls.Certificate) func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
}

// BootstrapKubeconfig makes a node's kubeconfig unless it is there: with the credentials of
// another it requests a client certificate, waits until that is signed, and keeps it in dir
// under upstream's name.
func BootstrapKubeconfig(ctx context.Context, with, path, dir, node string, log *slog.Logger) error {
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
	log.Info("waiting for the node's certificate", "node", node)
	cert, key, err := certificates.Request(ctx, client, &x509.CertificateRequest{Subject: nodeSubject(node)},
		certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth, log)
	if err != nil {
		return err
	}
	store := certificates.Current{Dir: dir, Name: clientName}
	if err := store.Save(cert, key); err != nil {
		return err
	}
	own := clientcmdapi.NewConfig()
	own.Clusters["default"] = &clientcmdapi.Cluster{
		Server: cfg.Host, TLSServerName: cfg.ServerName, InsecureSkipTLSVerify: cfg.Insecure,
		CertificateAuthority: cfg.CAFile, CertificateAuthorityData: cfg.CAData,
	}
	own.AuthInfos["default"] = &clientcmdapi.AuthInfo{ClientCertificate: store.Path(), ClientKey: store.Path()}
	own.Contexts["default"] = &clientcmdapi.Context{Cluster: "default", AuthInfo: "default"}
	own.CurrentContext = "default"
	text, err := clientcmd.Write(*own)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	return writeDurably(path, text, 0o600)
}
