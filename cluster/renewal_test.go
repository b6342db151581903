package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/component"
)

// Certificates are renewed while the node runs: its server shows the new one, a connection
// made before goes on, and its client shows the server the new one too.
func TestCertificatesAreRenewed(t *testing.T) {
	s := newServer(t, nil)
	j := s.join(t, "one")
	j.register(t)
	clk := clocktesting.NewFakeClock(time.Now())
	j.creds.clock = clk
	members, err := j.creds.renewal(j.NodeConfig, j.client, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	group := component.NewGroup(slog.New(slog.DiscardHandler))
	for _, m := range members {
		m.Background = true
		group.Add(m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- group.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{GetCertificate: j.creds.GetCertificate})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go echo(l)
	address := l.Addr().String()
	eventually(t, "a serving certificate is signed", func() error {
		_, err := shown(address, "one", j.creds.CA)
		return err
	})
	old, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	before := old.ConnectionState().PeerCertificates[0]
	whoBefore, err := j.credential(t)
	if err != nil {
		t.Fatal(err)
	}

	clk.Step(before.NotAfter.Sub(before.NotBefore) * 69 / 100)
	if now, err := shown(address, "one", j.creds.CA); err != nil || now.SerialNumber.Cmp(before.SerialNumber) != 0 {
		t.Errorf("after less than seven tenths of its life another certificate is shown (%v)", err)
	}
	clk.Step(before.NotAfter.Sub(before.NotBefore) * 22 / 100)
	eventually(t, "the server's certificate is renewed", func() error {
		now, err := shown(address, "127.0.0.1", j.creds.CA)
		if err == nil && now.SerialNumber.Cmp(before.SerialNumber) == 0 {
			err = errors.New("it is the same still")
		}
		return err
	})
	if _, err := old.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := old.Read(make([]byte, 1)); err != nil {
		t.Errorf("the connection made before: %v", err)
	}
	// Who reads the files goes by the real clock.
	saved := time.Now()
	eventually(t, "the client's certificate is renewed", func() error {
		if time.Since(saved) > filesRead {
			clk.Step(filesRead)
		}
		who, err := j.credential(t)
		if err == nil && who == whoBefore {
			err = fmt.Errorf("it is %s still", who)
		}
		return err
	})
}

// credential is which certificate the API server was shown.
func (j *joined) credential(t *testing.T) (string, error) {
	r, err := j.client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	if r.Status.UserInfo.Username != "system:node:"+j.NodeName || !slices.Contains(r.Status.UserInfo.Groups, "system:nodes") {
		return "", fmt.Errorf("the node is %+v", r.Status.UserInfo)
	}
	id := r.Status.UserInfo.Extra["authentication.kubernetes.io/credential-id"]
	if len(id) != 1 {
		return "", fmt.Errorf("the API server names the credentials %v", id)
	}
	return id[0], nil
}

func echo(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			buf := make([]byte, 1)
			for {
				if _, err := conn.Read(buf); err != nil {
					return
				}
				if _, err := conn.Write(buf); err != nil {
					return
				}
			}
		}()
	}
}

// A kubelet alone gets its certificate by a bootstrap kubeconfig, as upstream's does, and
// renews it and its serving certificate in upstream's files.
func TestKubeletAloneRenews(t *testing.T) {
	s := newServer(t, nil)
	token := s.token(t, time.Hour)
	dir := t.TempDir()
	with, path, certs := filepath.Join(dir, "bootstrap.conf"), filepath.Join(dir, "kubelet.conf"), filepath.Join(dir, "pki")
	boot := clientcmdapi.NewConfig()
	boot.Clusters["c"] = &clientcmdapi.Cluster{Server: s.PublicServer(), CertificateAuthority: s.paths.PKI() + "/ca.crt"}
	boot.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: token.Bearer()}
	boot.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	boot.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*boot, with); err != nil {
		t.Fatal(err)
	}
	if err := BootstrapKubeconfig(t.Context(), with, path, certs, "alone", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	// What it got is used, not requested again.
	if err := BootstrapKubeconfig(t.Context(), "/nonexistent", path, certs, "alone", slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("the second time: %v", err)
	}
	for name, conf := range map[string]func() *rest.Config{
		"with the kubeconfig made": func() *rest.Config {
			c, err := clientcmd.BuildConfigFromFlags("", path)
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		"with a certificate in the kubeconfig": func() *rest.Config {
			pair, err := os.ReadFile(filepath.Join(certs, "kubelet-client-current.pem"))
			if err != nil {
				t.Fatal(err)
			}
			certs = filepath.Join(dir, "others")
			return &rest.Config{Host: s.PublicServer(), TLSClientConfig: rest.TLSClientConfig{CAFile: s.paths.PKI() + "/ca.crt", CertData: pair, KeyData: pair}}
		},
	} {
		var k KubeletConfig
		k.NodeName, k.NodeIPs = "alone", []string{"127.0.0.1"}
		c := conf()
		if err := k.Renew(certs, c, true, true); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		client, err := kubernetes.NewForConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		j := joined{NodeConfig: &NodeConfig{NodeName: "alone"}, client: client}
		if _, err := j.credential(t); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if members, err := k.renewed.renewal(j.NodeConfig, client, slog.New(slog.DiscardHandler)); err != nil || len(members) != 2 {
			t.Errorf("%s: %d certificates are renewed, %v", name, len(members), err)
		}
		if _, err := k.renewed.GetCertificate(nil); err == nil || !strings.Contains(err.Error(), "not signed") {
			t.Errorf("%s: it serves before anyone has signed: %v", name, err)
		}
	}
	var k KubeletConfig
	if err := k.Renew(filepath.Join(dir, "none"), &rest.Config{Host: "x", BearerToken: "t"}, true, false); err == nil || !strings.Contains(err.Error(), "rotateCertificates") {
		t.Errorf("nothing to renew: %v", err)
	}
}
