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
			if got := resp.User.GetName(); got != tt.want {
				t.Errorf("user %q, want %q", got, tt.want)
			}
			if crew := slices.Contains(resp.User.GetGroups(), "crew"); crew != (tt.want == "ann") {
				t.Errorf("groups %v", resp.User.GetGroups())
			}
		})
	}
}
