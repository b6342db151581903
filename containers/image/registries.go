package image

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// Registries says how registries are reached.
type Registries struct {
	// PlainHTTP names hosts (host or host:port) that are spoken to without TLS.
	PlainHTTP []string `json:"plainHTTP,omitempty"`
	// Mirrors maps a registry host, or "*" for any, to base URLs that are
	// tried in order before the registry itself: http://127.0.0.1:5000.
	// A URL with the scheme http is plain HTTP.
	Mirrors map[string][]string `json:"mirrors,omitempty"`
	// Auth has credentials by host (docker.io for names without one), for pulls that bring
	// none of their own, and for mirrors, which get no others.
	Auth map[string]Auth `json:"auth,omitempty"`
	// CAFile adds authorities to the system's for registries over HTTPS, CAFiles
	// for single hosts.
	CAFile  string            `json:"caFile,omitempty"`
	CAFiles map[string]string `json:"caFiles,omitempty"`
	// ProgressDeadline ends a pull that brings nothing for so long; default: 1 minute.
	ProgressDeadline time.Duration `json:"progressDeadline,omitempty"`
	// ProgressEvery is how often a pull is told of; default: 10 s.
	ProgressEvery time.Duration `json:"progressEvery,omitempty"`
}

// Auth is what a pull presents to the registry; the zero value is anonymous.
type Auth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	Auth          string `json:"auth,omitempty"`
	IdentityToken string `json:"identityToken,omitempty"`
	RegistryToken string `json:"registryToken,omitempty"`
}

// reach speaks to each host in the way that was said: plain HTTP to those named for it and to
// them alone (the registry library would fall back to it for any local-looking host), TLS
// with the authorities of the host to others.
type reach struct {
	next  *http.Transport
	hosts map[string]*http.Transport // those with authorities of their own
	plain map[string]bool
}

func newReach(reg Registries) (*reach, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConnsPerHost = 4
	base.IdleConnTimeout = 30 * time.Second
	// Also for hosts that take connections and say nothing.
	base.ResponseHeaderTimeout = 30 * time.Second
	r := &reach{next: base, hosts: map[string]*http.Transport{}, plain: map[string]bool{}}
	if reg.CAFile != "" {
		if err := trust(base, "registries.caFile", reg.CAFile); err != nil {
			return nil, err
		}
	}
	for host, file := range reg.CAFiles {
		t := base.Clone()
		if err := trust(t, "registries.caFiles."+host, file); err != nil {
			return nil, err
		}
		r.hosts[host] = t
	}
	for _, h := range reg.PlainHTTP {
		r.plain[h] = true
	}
	for _, urls := range reg.Mirrors {
		for _, u := range urls {
			p, err := url.Parse(u)
			if err != nil || p.Host == "" || (p.Scheme != "http" && p.Scheme != "https") {
				return nil, fmt.Errorf("registries.mirrors: %q is not an http or https URL", u)
			}
			if p.Scheme == "http" {
				r.plain[p.Host] = true
			}
		}
	}
	return r, nil
}

// trust adds the authorities of a file to those that a transport has.
func trust(t *http.Transport, field, file string) error {
	pem, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	var pool *x509.CertPool
	if t.TLSClientConfig != nil && t.TLSClientConfig.RootCAs != nil {
		pool = t.TLSClientConfig.RootCAs.Clone()
	} else if pool, err = x509.SystemCertPool(); err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s: %s holds no PEM certificate", field, file)
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return nil
}

// RoundTrip implements http.RoundTripper; what an answer brings counts as progress of
// the pull that asks.
func (g *reach) RoundTrip(r *http.Request) (*http.Response, error) {
	plain := g.speaksPlain(r.URL.Host)
	if r.URL.Scheme == "http" && !plain {
		return nil, fmt.Errorf("%s is not among the registries that may be spoken to over plain HTTP", r.URL.Host)
	}
	if r.URL.Scheme == "https" && plain {
		return nil, fmt.Errorf("%s is named for plain HTTP", r.URL.Host)
	}
	next := g.next
	if t := g.hosts[r.URL.Host]; t != nil {
		next = t
	}
	p := progressOf(r.Context())
	if p == nil {
		p = &progress{} // nobody looks
	}
	p.asked.Add(1)
	over := sync.OnceFunc(func() { p.asked.Add(-1) })
	resp, err := next.RoundTrip(r)
	if err != nil {
		over()
		return nil, explain(r.URL.Host, err)
	}
	resp.Body = &answer{counted{resp.Body, &p.bytes}, over}
	return resp, nil
}

func (g *reach) speaksPlain(host string) bool {
	name, _, err := net.SplitHostPort(host)
	return g.plain[host] || err == nil && g.plain[name]
}

// explain adds the mend to what TLS complains of.
func explain(host string, err error) error {
	var unknown x509.UnknownAuthorityError
	var header tls.RecordHeaderError
	switch {
	case errors.As(err, &unknown):
		return fmt.Errorf("%w: name the authority of %s in registries.caFiles", err, host)
	case errors.As(err, &header), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("%w: if %s has no TLS, name it in registries.plainHTTP", err, host)
	}
	return err
}

// CloseIdleConnections lets the registry client end what it no longer needs.
func (g *reach) CloseIdleConnections() {
	g.next.CloseIdleConnections()
	for _, t := range g.hosts {
		t.CloseIdleConnections()
	}
}
