package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
