package authn

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/utils/clock"
)

// FrontProxy are proxies that authenticate users themselves and name them in headers
// (upstream's --requestheader-* flags).
type FrontProxy struct {
	// CAs verify the proxies' client certificates.
	CAs *x509.CertPool
	// Names are the common names that may act as proxies; empty: any that CAs verify.
	Names []string
	// UserHeaders, UIDHeaders, GroupHeaders and ExtraPrefixes say where the user stands.
	UserHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

// frontProxy authenticates for a FrontProxy.
type frontProxy struct {
	certificates *certificates
	names        []string
	userHeaders  []string
	headers      authenticator.Request
}

func newFrontProxy(f *FrontProxy, c clock.PassiveClock) (*frontProxy, error) {
	if f.CAs == nil || len(f.UserHeaders) == 0 {
		return nil, errors.New("authn: a front proxy needs a CA and a header that names the user")
	}
	headers, err := headerrequest.New(f.UserHeaders, f.UIDHeaders, f.GroupHeaders, f.ExtraPrefixes)
	if err != nil {
		return nil, fmt.Errorf("authn: front proxy: %w", err)
	}
	return &frontProxy{
		certificates: newCertificates(func() *x509.CertPool { return f.CAs }, c),
		names:        f.Names, userHeaders: f.UserHeaders, headers: headers,
	}, nil
}

// AuthenticateRequest is the user that a proxy names; nobody if the request is not a
// proxy's. Most are not: they do not cost a look at the certificate.
func (f *frontProxy) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool) {
	if !slices.ContainsFunc(f.userHeaders, func(h string) bool { return req.Header.Get(h) != "" }) {
		return nil, false
	}
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false
	}
	// An error says that the certificate is another's: of a user, who is asked next.
	if err := f.certificates.verify(req.TLS.PeerCertificates); err != nil {
		return nil, false
	}
	if len(f.names) > 0 && !slices.Contains(f.names, req.TLS.PeerCertificates[0].Subject.CommonName) {
		return nil, false
	}
	resp, ok, err := f.headers.AuthenticateRequest(req)
	if err != nil || !ok {
		return nil, false
	}
	return authenticated(resp), true
}
