package authn

import (
	"crypto/x509"
	"errors"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
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

func (f *FrontProxy) authenticator() (authenticator.Request, error) {
	if f.CAs == nil || len(f.UserHeaders) == 0 {
		return nil, errors.New("authn: a front proxy needs a CA and a header that names the user")
	}
	verify := func() (x509.VerifyOptions, bool) {
		return x509.VerifyOptions{Roots: f.CAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, true
	}
	list := func(s []string) headerrequest.StringSliceProvider { return headerrequest.StaticStringSlice(s) }
	return headerrequest.NewDynamicVerifyOptionsSecure(verify, list(f.Names), list(f.UserHeaders), list(f.UIDHeaders), list(f.GroupHeaders), list(f.ExtraPrefixes)), nil
}

// fromFrontProxy is the user that a proxy names; nobody if the request is not a proxy's.
func (a *Authenticator) fromFrontProxy(req *http.Request) (*authenticator.Response, bool) {
	if a.frontProxy == nil || req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false
	}
	// An error says that the certificate is another's: of a user, who is asked next.
	resp, ok, err := a.frontProxy.AuthenticateRequest(req)
	if err != nil || !ok {
		return nil, false
	}
	return authenticated(resp), true
}
