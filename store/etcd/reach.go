package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	// reachTry bounds one attempt, reachPause lies between two.
	reachTry   = 2 * time.Second
	reachPause = time.Second
	probeTry   = 2 * time.Second
)

// reach returns once etcd has answered, or with the reason why it does not.
func (s *Client) reach(ctx context.Context) error {
	give := s.cfg.Clock.NewTimer(s.cfg.StartTimeout)
	defer give.Stop()
	told := ""
	for {
		try, cancel := context.WithTimeout(ctx, reachTry)
		_, err := s.Revision(try)
		cancel()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		reason, hopeless := s.diagnose(ctx)
		if reason == nil {
			reason = fmt.Errorf("etcd at %s does not answer: %w", strings.Join(s.cfg.Endpoints, ", "), err)
		}
		if hopeless {
			return reason
		}
		if text := reason.Error(); text != told {
			told = text
			s.cfg.Logger.Warn("waiting for etcd", "reason", text)
		}
		pause := s.cfg.Clock.NewTimer(reachPause)
		select {
		case <-pause.C():
		case <-give.C():
			pause.Stop()
			return reason
		case <-ctx.Done():
			pause.Stop()
			return nil
		}
	}
}

// errSettings marks what only a change of settings mends.
var errSettings = errors.New("settings")

type settingsError struct{ text string }

func (e *settingsError) Error() string        { return e.text }
func (e *settingsError) Is(target error) bool { return target == errSettings }

// diagnose finds out what is wrong with each endpoint. It is hopeless when no endpoint
// can ever work with these settings; nil when all seem well.
func (s *Client) diagnose(ctx context.Context) (reason error, hopeless bool) {
	conf, err := s.cfg.tls()
	if err != nil {
		return err, true
	}
	hopeless = true
	var texts []string
	for _, e := range s.cfg.Endpoints {
		u, err := url.Parse(e)
		if err != nil {
			return err, true // New has checked them
		}
		err = s.probe(ctx, u, conf)
		hopeless = hopeless && errors.Is(err, errSettings)
		if err != nil {
			texts = append(texts, fmt.Sprintf("etcd at %s: %v", e, err))
		}
	}
	if len(texts) == 0 {
		return nil, false
	}
	return errors.New(strings.Join(texts, "; ")), hopeless
}

// probe connects to one endpoint and looks how far it gets.
func (s *Client) probe(ctx context.Context, u *url.URL, conf *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, probeTry)
	defer cancel()
	network, address := "tcp", u.Host
	if strings.HasPrefix(u.Scheme, "unix") {
		network, address = "unix", u.Host+u.Path
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return unreachable(err)
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	if conf == nil {
		// Plain text: if TLS is spoken there, that is the fault. Nothing is sent over it.
		if tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx) == nil {
			return &settingsError{"it speaks TLS: use https:// in --etcd-servers"}
		}
		return nil
	}
	conf = conf.Clone()
	conf.ServerName = u.Hostname()
	conf.NextProtos = []string{"h2"}
	secure := tls.Client(conn, conf)
	if err := secure.HandshakeContext(ctx); err != nil {
		if speaksPlain(ctx, network, address) {
			return &settingsError{"it does not speak TLS: use http:// in --etcd-servers"}
		}
		return s.refused(err)
	}
	// In TLS 1.3 the server's verdict on our certificate comes after the handshake; a
	// content one says nothing, or sends settings of HTTP/2.
	if _, err := secure.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return s.refused(err)
	}
	return nil
}

// speaksPlain tells whether HTTP/2 in plain text is answered, as gRPC is.
func speaksPlain(ctx context.Context, network, address string) bool {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return false
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok && conn.SetDeadline(deadline) != nil {
		return false
	}
	// The client's preface with empty settings; the server's first frame is settings (4) too.
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return false
	}
	header := make([]byte, 9)
	_, err = io.ReadFull(conn, header)
	return err == nil && header[3] == 4
}

func unreachable(err error) error {
	var dns *net.DNSError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return errors.New("connection refused: nothing listens there; start etcd or correct --etcd-servers")
	case errors.As(err, &dns):
		return fmt.Errorf("no address for %s: correct --etcd-servers or the name's DNS entry", dns.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return errors.New("no answer to a connection: check the network and --etcd-servers")
	}
	return err
}

// refused explains a TLS connection that failed.
func (s *Client) refused(err error) error {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		remote  *net.OpError
	)
	roots := "the host's trusted roots: set --etcd-cafile"
	if s.cfg.CAFile != "" {
		roots = "--etcd-cafile " + s.cfg.CAFile
	}
	switch {
	case errors.As(err, &unknown):
		return &settingsError{"its certificate is signed by none of " + roots}
	case errors.As(err, &name), errors.As(err, &invalid):
		return &settingsError{"its certificate is not good: " + strings.TrimPrefix(err.Error(), "tls: failed to verify certificate: ")}
	case errors.As(err, &remote) && remote.Op == "remote error":
		if s.cfg.CertFile == "" {
			return &settingsError{"it wants a client certificate: set --etcd-certfile and --etcd-keyfile"}
		}
		return &settingsError{fmt.Sprintf("it does not take --etcd-certfile %s (%v)", s.cfg.CertFile, remote.Err)}
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return errors.New("it ended the connection during the TLS handshake")
	}
	return fmt.Errorf("TLS handshake: %w", err)
}
