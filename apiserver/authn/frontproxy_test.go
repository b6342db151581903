package authn

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

func TestFrontProxy(t *testing.T) {
	proxies, users := newAuthority(t), newAuthority(t)
	a, err := New(Config{
		ClientCAs: users.pool, Anonymous: true,
		FrontProxy: &FrontProxy{CAs: proxies.pool(), Names: []string{"front"}, UserHeaders: []string{"X-Remote-User"}, GroupHeaders: []string{"X-Remote-Group"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	until := time.Now().Add(time.Hour)
	for _, tt := range []struct {
		name   string
		ca     *authority
		common string
		header string
		want   string // "": refused
	}{
		{"a proxy names a user", proxies, "front", "ann", "ann"},
		{"a proxy of another name is nobody", proxies, "back", "ann", ""},
		{"a user cannot name another", users, "front", "ann", "front"},
		{"a user without headers", users, "bob", "", "bob"},
		{"without a certificate headers mean nothing", nil, "", "ann", "system:anonymous"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := httptest.NewRequest("GET", "/", nil)
			if tt.ca != nil {
				cert := tt.ca.issue(t, pkix.Name{CommonName: tt.common}, x509.ExtKeyUsageClientAuth, until)
				req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
			}
			if tt.header != "" {
				req.Header.Set("X-Remote-User", tt.header)
				req.Header.Set("X-Remote-Group", "crew")
			}
			resp, ok, err := a.AuthenticateRequest(req)
			if !ok {
				if tt.want != "" {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			if tt.want == "" {
				t.Fatalf("taken for %s", resp.User.GetName())
			}
			if got := resp.User.GetName(); got != tt.want {
				t.Errorf("user %q, want %q", got, tt.want)
			}
			if crew := slices.Contains(resp.User.GetGroups(), "crew"); crew != (tt.want == "ann") {
				t.Errorf("groups %v", resp.User.GetGroups())
			}
		})
	}
}

// TestFrontProxyHeaders: everything that the headers say of the user counts, and no server
// behind this one sees them.
func TestFrontProxyHeaders(t *testing.T) {
	proxies := newAuthority(t)
	middle := proxies.intermediate(t)
	a, err := New(Config{FrontProxy: &FrontProxy{CAs: proxies.pool(), UserHeaders: []string{"X-User", "X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
		GroupHeaders: []string{"X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"}}})
	if err != nil {
		t.Fatal(err)
	}
	cert := middle.issue(t, pkix.Name{CommonName: "any"}, x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour))
	for range 2 { // verified, and remembered
		req := httptest.NewRequest("GET", "/", nil)
		req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert, middle.cert}}
		req.Header = map[string][]string{
			"X-Remote-User": {"ann"}, "X-Remote-Uid": {"7"}, "X-Remote-Group": {"a", "", "b"},
			"X-Remote-Extra-Acme.org%2fscopes": {"read", "write"}, "Accept": {"*/*"},
		}
		resp, ok, err := a.AuthenticateRequest(req)
		if !ok {
			t.Fatalf("refused: %v", err)
		}
		u := resp.User
		if u.GetName() != "ann" || u.GetUID() != "7" || !slices.Equal(u.GetGroups(), []string{"a", "b", "system:authenticated"}) ||
			!slices.Equal(u.GetExtra()["acme.org/scopes"], []string{"read", "write"}) {
			t.Errorf("user %+v", u)
		}
		if len(req.Header) != 1 {
			t.Errorf("headers left: %v", req.Header)
		}
	}
	// Without its intermediate the certificate leads nowhere.
	req := httptest.NewRequest("GET", "/", nil)
	lone := middle.issue(t, pkix.Name{CommonName: "any"}, x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour))
	req.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{lone}}
	req.Header.Set("X-Remote-User", "ann")
	if resp, ok, _ := a.AuthenticateRequest(req); ok {
		t.Errorf("taken for %s", resp.User.GetName())
	}
}

func TestClientCertificateOfAnIntermediate(t *testing.T) {
	root := newAuthority(t)
	middle := root.intermediate(t)
	a, err := New(Config{ClientCAs: root.pool})
	if err != nil {
		t.Fatal(err)
	}
	cert := middle.issue(t, pkix.Name{CommonName: "bob", Organization: []string{"crew"}}, x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour))
	for want, chain := range map[bool][]*x509.Certificate{true: {cert, middle.cert}, false: {middle.issue(t, pkix.Name{CommonName: "bob"}, x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour))}} {
		req := httptest.NewRequest("GET", "/", nil)
		req.TLS = &tls.ConnectionState{PeerCertificates: chain}
		resp, ok, err := a.AuthenticateRequest(req)
		if ok != want {
			t.Errorf("a chain of %d: %v, %v", len(chain), ok, err)
		}
		if ok && resp.User.GetName() != "bob" {
			t.Errorf("user %s", resp.User.GetName())
		}
	}
}
