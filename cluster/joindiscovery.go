package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skiff-k8s/skiff/controllers/bootstraptokens"
)

const (
	clusterInfoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
	// clockTolerance is what the cluster's signers backdate certificates by.
	clockTolerance = 5 * time.Minute
	// unreachablePause is how long after a failure a server is tried again, and unreachableSay
	// how often the user is told.
	unreachablePause, unreachableSay = time.Second, 10 * time.Second
)

// errNotYet says that a server may answer otherwise in a moment.
var errNotYet = errors.New("not yet")

// discover returns the cluster's CA, by which the server is proved to be the one that the
// token is from: first it is asked without being believed, then as the CA has it.
func (o *JoinOptions) discover(ctx context.Context, server string, token Token) ([]byte, error) {
	var ca []byte
	err := o.untilReached(ctx, server, func(ctx context.Context) (err error) {
		info, err := fetchInfo(ctx, server, nil)
		if err != nil {
			return err
		}
		ca, err = trusted(info, token, server)
		return err
	})
	if err != nil {
		return nil, err
	}
	// Now whoever answers must have a certificate of that CA.
	err = o.untilReached(ctx, server, func(ctx context.Context) error {
		_, err := fetchInfo(ctx, server, ca)
		return err
	})
	return ca, err
}

// trusted is the CA in cluster-info, if the token's hash or signature proves it.
func trusted(info *corev1.ConfigMap, token Token, server string) ([]byte, error) {
	text := info.Data["kubeconfig"]
	cfg, err := clientcmd.Load([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("%s: the ConfigMap kube-public/cluster-info holds no kubeconfig: %w", server, err)
	}
	var ca []byte
	for _, c := range cfg.Clusters {
		ca = c.CertificateAuthorityData
	}
	if token.CAHash != "" {
		return pinned(ca, token.CAHash, server)
	}
	want, err := bootstraptokens.Sign(text, token.ID, token.Secret)
	if err != nil {
		return nil, err
	}
	switch info.Data["jws-kubeconfig-"+token.ID] {
	case want:
		return ca, nil
	case "":
		return nil, unknownToken(server)
	}
	return nil, fmt.Errorf("%s does not know the secret of the token %s: it is another cluster, or something between it and this machine", server, token.ID)
}

func unknownToken(server string) error {
	return fmt.Errorf("%s does not know the token, or it has expired; make another there: skiff token create", server)
}

// fetchInfo reads cluster-info as anyone may; without a CA whoever answers is not believed.
func fetchInfo(ctx context.Context, server string, ca []byte) (*corev1.ConfigMap, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: ca == nil}
	if ca != nil {
		conf.RootCAs = x509.NewCertPool()
		conf.RootCAs.AppendCertsFromPEM(ca)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: conf}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+clusterInfoPath, nil)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", server, err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return nil, explain(server, err)
	}
	defer resp.Body.Close()
	if err := checkClock(resp.Header.Get("Date"), time.Now()); err != nil {
		return nil, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%w: read the answer of %s: %w", errNotYet, server, err)
	}
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= 500:
		return nil, fmt.Errorf("%w: %s says %s", errNotYet, server, resp.Status)
	case resp.StatusCode == http.StatusNotFound && strings.Contains(string(body), `"cluster-info"`):
		return nil, fmt.Errorf("%w: %s has not published what joining nodes need (ConfigMap kube-public/cluster-info)", errNotYet, server)
	default:
		return nil, fmt.Errorf("%s says %s for %s: it is no API server that nodes can join", server, resp.Status, clusterInfoPath)
	}
	var info corev1.ConfigMap
	if err := json.Unmarshal(body, &info); err != nil {
		return nil, fmt.Errorf("%s: read the ConfigMap cluster-info: %w", server, err)
	}
	return &info, nil
}

// checkClock compares the server's clock, as a Date header tells it, with ours.
func checkClock(date string, now time.Time) error {
	there, err := http.ParseTime(date)
	if err != nil {
		return nil // a proxy may leave it out
	}
	off, how := now.Sub(there), "ahead of"
	if off < 0 {
		off, how = -off, "behind"
	}
	if off <= clockTolerance {
		return nil
	}
	return fmt.Errorf("this machine's clock is %s %s the server's (%s here, %s there), so that certificates and tokens would not be good: set the clock of whichever is wrong (timedatectl set-ntp true)",
		off.Round(time.Second), how, now.UTC().Format(time.RFC3339), there.UTC().Format(time.RFC3339))
}

// explain says what an error of a connection or request means to somebody who joins. Those
// that time may mend are errNotYet.
func explain(server string, err error) error {
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var network *net.OpError
	var dns *net.DNSError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the certificate of %s is good from %s to %s, and this machine's clock says %s: set the clock right, or start the server anew so that it renews its certificate", server,
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339))
	case errors.As(err, &name):
		return fmt.Errorf("the certificate of %s is not for that name (%w); use one of its names, or start the server with --tls-san", server, name)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of %s is not signed by the cluster's CA: something is between it and this machine, or the address is another server's", server)
	case errors.As(err, &record), err != nil && strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%s does not speak TLS: it is no API server", server)
	case apierrors.IsUnauthorized(err):
		return unknownToken(server)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("the token does not let nodes join (%w); make another: skiff token create", err)
	case errors.As(err, &dns), errors.As(err, &network), errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF):
		return fmt.Errorf("%w: %s cannot be reached: %w", errNotYet, server, err)
	}
	return err
}

// untilReached tries until the server has been reached, and tells what it waits for.
func (o *JoinOptions) untilReached(ctx context.Context, server string, try func(context.Context) error) error {
	var told time.Time
	var last string
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted while joining %s", server)
		}
		if !errors.Is(err, errNotYet) {
			return err
		}
		if text := err.Error(); text != last || time.Since(told) >= unreachableSay {
			last, told = text, time.Now()
			fmt.Fprintf(o.Progress, "%s; trying again, Ctrl-C ends it\n", strings.TrimPrefix(text, errNotYet.Error()+": "))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("interrupted while joining %s", server)
		case <-time.After(unreachablePause):
		}
	}
}
