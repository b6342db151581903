package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// tls checks the endpoints and reads the files; nil for endpoints without TLS.
func (c *ClientConfig) tls() (*tls.Config, error) {
	secure, err := c.secure()
	if err != nil {
		return nil, err
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		return nil, errors.New("--etcd-certfile and --etcd-keyfile go together: set both or none")
	}
	if !secure {
		if c.CAFile != "" || c.CertFile != "" {
			return nil, fmt.Errorf("--etcd-servers %s: --etcd-cafile and --etcd-certfile are of use for https:// only", c.Endpoints[0])
		}
		return nil, nil
	}
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-cafile: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--etcd-cafile %s: holds no certificate in PEM", c.CAFile)
		}
	}
	if c.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("--etcd-certfile %s, --etcd-keyfile %s: %w", c.CertFile, c.KeyFile, err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return conf, nil
}

// secure tells whether the endpoints are reached by TLS. The client takes the first one's
// word for all, so that they must agree.
func (c *ClientConfig) secure() (bool, error) {
	if len(c.Endpoints) == 0 {
		return false, errors.New("--etcd-servers: at least one URL is needed")
	}
	first := ""
	for _, e := range c.Endpoints {
		u, err := url.Parse(e)
		if err != nil {
			return false, fmt.Errorf("--etcd-servers %q: want a URL such as https://192.0.2.1:2379", e)
		}
		switch u.Scheme {
		case "http", "https":
			if u.Hostname() == "" {
				return false, fmt.Errorf("--etcd-servers %q: the host is missing", e)
			}
			if u.Port() == "" {
				return false, fmt.Errorf("--etcd-servers %s: the port is missing; etcd's is 2379", e)
			}
			if strings.Trim(u.Path, "/") != "" {
				return false, fmt.Errorf("--etcd-servers %s: a path has no meaning there", e)
			}
		case "unix", "unixs":
		default:
			return false, fmt.Errorf("--etcd-servers %q: the scheme must be http, https, unix or unixs", e)
		}
		if first == "" {
			first = u.Scheme
		}
		if u.Scheme != first {
			return false, fmt.Errorf("--etcd-servers: %s and %s cannot be mixed", first, u.Scheme)
		}
	}
	return first == "https" || first == "unixs", nil
}
