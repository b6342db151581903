package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/go-jose/go-jose.v2"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
)

func ecKey(t testing.TB, c elliptic.Curve) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{key: ecKey(t, elliptic.P256())}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

// intermediate is an authority that a has certified.
func (a *authority) intermediate(t testing.TB) *authority {
	t.Helper()
	m := &authority{key: ecKey(t, elliptic.P256())}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: "intermediate"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, m.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if m.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return m
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func (a *authority) issue(t testing.TB, subject pkix.Name, usage x509.ExtKeyUsage, until time.Time) *x509.Certificate {
	t.Helper()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, ecKey(t, elliptic.P256()).Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestClientCertificates(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	pool := ca.pool()
	clk := clocktesting.NewFakePassiveClock(time.Now())
	a, err := New(Config{ClientCAs: func() *x509.CertPool { return pool }, Anonymous: true, Clock: clk})
	if err != nil {
		t.Fatal(err)
	}
	request := func(c *x509.Certificate) *http.Request {
		r := httptest.NewRequest("GET", "/api", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}
		return r
	}
	hour := time.Now().Add(30 * time.Minute)
	alice := ca.issue(t, pkix.Name{
		CommonName: "alice", Organization: []string{"dev", "ops"},
		ExtraNames: []pkix.AttributeTypeAndValue{{Type: uidAttribute, Value: "u-1"}},
	}, x509.ExtKeyUsageClientAuth, hour)
	for range 2 { // the second is answered from memory
		resp, ok, err := a.AuthenticateRequest(request(alice))
		if err != nil || !ok {
			t.Fatalf("alice: %v, %v", ok, err)
		}
		u := resp.User
		if u.GetName() != "alice" || u.GetUID() != "u-1" || !slices.Equal(u.GetGroups(), []string{"dev", "ops", user.AllAuthenticated}) ||
			!strings.HasPrefix(u.GetExtra()[user.CredentialIDKey][0], "X509SHA256=") {
			t.Fatalf("alice is %+v", u)
		}
	}
	for name, c := range map[string]*x509.Certificate{
		"other authority":    other.issue(t, pkix.Name{CommonName: "eve"}, x509.ExtKeyUsageClientAuth, hour),
		"server certificate": ca.issue(t, pkix.Name{CommonName: "eve"}, x509.ExtKeyUsageServerAuth, hour),
		"expired":            ca.issue(t, pkix.Name{CommonName: "eve"}, x509.ExtKeyUsageClientAuth, time.Now().Add(-time.Minute)),
	} {
		if _, ok, err := a.AuthenticateRequest(request(c)); ok || err == nil {
			t.Errorf("%s: accepted (%v, %v)", name, ok, err)
		}
	}
	nobody := ca.issue(t, pkix.Name{Organization: []string{"dev"}}, x509.ExtKeyUsageClientAuth, hour)
	if resp, ok, err := a.AuthenticateRequest(request(nobody)); err != nil || !ok || resp.User.GetName() != user.Anonymous {
		t.Errorf("certificate without a name: %v, %v, %v", resp, ok, err)
	}

	pool = other.pool() // reloaded
	if _, ok, err := a.AuthenticateRequest(request(alice)); ok || err == nil {
		t.Errorf("alice after her authority went: %v, %v", ok, err)
	}
	pool = ca.pool()
	clk.SetTime(hour.Add(time.Second))
	if _, ok, err := a.AuthenticateRequest(request(alice)); ok || err == nil {
		t.Errorf("alice after expiry: %v, %v", ok, err)
	}
}

func TestSignatures(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "1"}}
	for name, key := range map[string]crypto.Signer{
		"ES256": ecKey(t, elliptic.P256()), "ES384": ecKey(t, elliptic.P384()), "ES512": ecKey(t, elliptic.P521()), "RS256": rsaKey,
	} {
		t.Run(name, func(t *testing.T) {
			is, err := NewIssuer(IssuerConfig{Key: key})
			if err != nil {
				t.Fatal(err)
			}
			token, jti, err := is.Sign(sa, Bound{}, []string{"a", "b"}, time.Hour, 0)
			if err != nil {
				t.Fatal(err)
			}
			// Another implementation accepts what we sign …
			parsed, err := jwt.ParseSigned(token)
			if err != nil {
				t.Fatal(err)
			}
			var theirs jwt.Claims
			if err := parsed.Claims(key.Public(), &theirs); err != nil {
				t.Fatal(err)
			}
			if theirs.Subject != "system:serviceaccount:ns:sa" || theirs.ID != jti || parsed.Headers[0].Algorithm != name {
				t.Errorf("claims %+v, headers %+v", theirs, parsed.Headers)
			}
			// … and we accept what it signs.
			s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(name), Key: key}, nil)
			if err != nil {
				t.Fatal(err)
			}
			token, err = jwt.Signed(s).Claims(jwt.Claims{Issuer: DefaultIssuer, Subject: "x", Audience: jwt.Audience{"one"}}).CompactSerialize()
			if err != nil {
				t.Fatal(err)
			}
			c, ours, err := is.verify(token)
			if err != nil || !ours || c.Subject != "x" || !slices.Equal(c.Audience, []string{"one"}) {
				t.Errorf("verify: %+v, %v, %v", c, ours, err)
			}
			// A changed payload does not pass.
			head, rest, _ := strings.Cut(token, ".")
			_, sig, _ := strings.Cut(rest, ".")
			forged := head + "." + encodeSegment([]byte(`{"iss":"`+DefaultIssuer+`","sub":"y"}`)) + "." + sig
			if _, _, err := is.verify(forged); err == nil {
				t.Error("a forged token verifies")
			}
		})
	}
	is, _ := NewIssuer(IssuerConfig{Key: ecKey(t, elliptic.P256())})
	payload := encodeSegment([]byte(`{"iss":"` + DefaultIssuer + `","sub":"y"}`))
	for _, head := range []string{`{"alg":"none"}`, `{"alg":"HS256"}`} {
		if _, _, err := is.verify(encodeSegment([]byte(head)) + "." + payload + "."); err == nil {
			t.Errorf("%s verifies", head)
		}
	}
	for _, garbage := range []string{"", "a", "a.b", "..", "a.b.c.d", "!.!.!"} {
		if _, ours, err := is.verify(garbage); ours || err != nil {
			t.Errorf("%q: %v, %v", garbage, ours, err)
		}
	}
}

type fixture struct {
	*Authenticator
	issuer *Issuer
	caches *lookuptest.Caches
	clock  *clocktesting.FakePassiveClock
	sa     *corev1.ServiceAccount
	pod    *corev1.Pod
	secret *corev1.Secret
	node   *corev1.Node
	used   []string
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{
		clock:  clocktesting.NewFakePassiveClock(time.Now()),
		sa:     &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-1"}},
		pod:    &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "pod-1"}},
		secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "secret", UID: "secret-1"}},
		node:   &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node-1"}},
	}
	f.caches = lookuptest.New(t, f.sa, f.pod, f.secret, f.node)
	var err error
	if f.issuer, err = NewIssuer(IssuerConfig{Key: ecKey(t, elliptic.P256()), Clock: f.clock}); err != nil {
		t.Fatal(err)
	}
	f.Authenticator, err = New(Config{
		Issuer: f.issuer, Caches: f.caches, Bootstrap: true, Clock: f.clock,
		Tokens:   map[string]user.Info{"static": &user.DefaultInfo{Name: "admin"}},
		MarkUsed: func(ns, name, today string) { f.used = append(f.used, ns+"/"+name) },
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) authenticate(token string) (user.Info, error) {
	r := httptest.NewRequest("GET", "/api", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	resp, ok, err := f.AuthenticateRequest(r)
	if !ok {
		return nil, err
	}
	return resp.User, nil
}

func (f *fixture) sign(t *testing.T, b Bound, audiences ...string) string {
	t.Helper()
	if len(audiences) == 0 {
		audiences = f.issuer.Audiences()
	}
	token, _, err := f.issuer.Sign(f.sa, b, audiences, time.Hour, 0)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestBoundTokens(t *testing.T) {
	f := newFixture(t)
	u, err := f.authenticate(f.sign(t, Bound{Pod: f.pod, Node: f.node}))
	if err != nil {
		t.Fatal(err)
	}
	extra := u.GetExtra()
	if u.GetName() != "system:serviceaccount:ns:sa" || u.GetUID() != "sa-1" ||
		!slices.Equal(u.GetGroups(), []string{"system:serviceaccounts", "system:serviceaccounts:ns", user.AllAuthenticated}) ||
		extra["authentication.kubernetes.io/pod-name"][0] != "pod" || extra["authentication.kubernetes.io/pod-uid"][0] != "pod-1" ||
		extra["authentication.kubernetes.io/node-name"][0] != "node" || !strings.HasPrefix(extra[user.CredentialIDKey][0], "JTI=") {
		t.Fatalf("user is %+v", u)
	}
	if _, err := f.authenticate(f.sign(t, Bound{}, "elsewhere")); err == nil || !strings.Contains(err.Error(), "is invalid for the target audiences") {
		t.Errorf("foreign audience: %v", err)
	}

	imposter := *f.pod
	imposter.UID = "pod-2"
	if _, err := f.authenticate(f.sign(t, Bound{Pod: &imposter})); err == nil || !strings.Contains(err.Error(), "does not match service account pod ref claim") {
		t.Errorf("pod with another uid: %v", err)
	}
	for name, b := range map[string]Bound{"pod": {Pod: f.pod}, "secret": {Secret: f.secret}, "node": {Node: f.node}} {
		token := f.sign(t, b)
		if _, err := f.authenticate(token); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		switch name {
		case "pod":
			f.caches.Delete(f.pod)
		case "secret":
			f.caches.Delete(f.secret)
		case "node":
			f.caches.Delete(f.node)
		}
		if _, err := f.authenticate(token); err == nil || err.Error() != "service account token has been invalidated" {
			t.Errorf("%s is gone: %v", name, err)
		}
	}

	token := f.sign(t, Bound{})
	f.clock.SetTime(f.clock.Now().Add(time.Hour + 2*time.Minute))
	if _, err := f.authenticate(token); err == nil || err.Error() != "service account token has expired" {
		t.Errorf("expired: %v", err)
	}
	token = f.sign(t, Bound{})
	f.caches.Delete(f.sa)
	if _, err := f.authenticate(token); err == nil {
		t.Error("account is gone, yet its token passes")
	}
}

func TestLegacyTokens(t *testing.T) {
	f := newFixture(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "legacy"}, Type: corev1.SecretTypeServiceAccountToken}
	token, err := f.issuer.SignLegacy(f.sa, secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.authenticate(token); err == nil || err.Error() != "Token has been invalidated" {
		t.Errorf("without the secret: %v", err)
	}
	secret.Data = map[string][]byte{"token": []byte(token)}
	f.caches.Create(secret)
	u, err := f.authenticate(token)
	if err != nil || u.GetName() != "system:serviceaccount:ns:sa" || len(u.GetExtra()) != 0 {
		t.Fatalf("%+v, %v", u, err)
	}
	if !slices.Equal(f.used, []string{"ns/legacy"}) {
		t.Errorf("marked used: %v", f.used)
	}
	f.caches.Delete(secret)
	secret.Labels = map[string]string{invalidSinceLabel: "2026-01-01", lastUsedLabel: f.clock.Now().UTC().Format(time.DateOnly)}
	f.caches.Create(secret)
	if _, err := f.authenticate(token); err == nil || !strings.Contains(err.Error(), "has been marked invalid") {
		t.Errorf("invalidated: %v", err)
	}
	if len(f.used) != 1 {
		t.Errorf("marked used again on the same day: %v", f.used)
	}
}

func TestBootstrapAndStaticTokens(t *testing.T) {
	f := newFixture(t)
	secret := func(id string, change func(*corev1.Secret)) {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id},
			Type:       "bootstrap.kubernetes.io/token",
			Data: map[string][]byte{
				"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true"),
			},
		}
		change(s)
		f.caches.Create(s)
	}
	secret("aaaaaa", func(s *corev1.Secret) {
		s.Data["auth-extra-groups"] = []byte("system:bootstrappers:kubeadm:default-node-token")
		s.Data["expiration"] = []byte(f.clock.Now().Add(time.Hour).Format(time.RFC3339))
	})
	secret("bbbbbb", func(s *corev1.Secret) {
		s.Data["expiration"] = []byte(f.clock.Now().Add(-time.Hour).Format(time.RFC3339))
	})
	secret("cccccc", func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") })
	secret("dddddd", func(s *corev1.Secret) { s.Type = "Opaque" })
	secret("eeeeee", func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") })
	u, err := f.authenticate("aaaaaa.0123456789abcdef")
	if err != nil || u.GetName() != "system:bootstrap:aaaaaa" ||
		!slices.Equal(u.GetGroups(), []string{"system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token", user.AllAuthenticated}) {
		t.Errorf("%+v, %v", u, err)
	}
	for _, bad := range []string{
		"aaaaaa.0123456789abcdee", "bbbbbb.0123456789abcdef", "cccccc.0123456789abcdef", "dddddd.0123456789abcdef",
		"eeeeee.0123456789abcdef", "ffffff.0123456789abcdef", "other",
	} {
		if u, err := f.authenticate(bad); err == nil {
			t.Errorf("%s: %+v", bad, u)
		}
	}
	if u, err := f.authenticate("static"); err != nil || u.GetName() != "admin" {
		t.Errorf("static: %+v, %v", u, err)
	}
}

func TestWebSocketToken(t *testing.T) {
	f := newFixture(t)
	r := httptest.NewRequest("GET", "/api", nil)
	r.Header.Set("Upgrade", "websocket")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Sec-Websocket-Protocol", bearerProtocol+encodeSegment([]byte("static"))+", v5.channel.k8s.io")
	resp, ok, err := f.AuthenticateRequest(r)
	if err != nil || !ok || resp.User.GetName() != "admin" {
		t.Fatalf("%+v, %v", resp, err)
	}
	if got := r.Header.Get("Sec-Websocket-Protocol"); got != "v5.channel.k8s.io" {
		t.Errorf("protocols left: %q", got)
	}
}

func TestDiscovery(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key := ecKey(t, elliptic.P256())
	is, err := NewIssuer(IssuerConfig{Key: key, Keys: []crypto.PublicKey{rsaKey.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	h, err := is.Discovery("10.0.0.1:6443", "")
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) []byte {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), "GET", path, nil))
		if w.Code != 200 {
			t.Fatalf("%s: %d", path, w.Code)
		}
		return w.Body.Bytes()
	}
	want := `{"issuer":"https://kubernetes.default.svc.cluster.local","jwks_uri":"https://10.0.0.1:6443/openid/v1/jwks","response_types_supported":["id_token"],"subject_types_supported":["public"],"id_token_signing_alg_values_supported":["ES256","RS256"]}`
	if got := string(get(OpenIDConfigPath)); got != want {
		t.Errorf("config is %s", got)
	}
	var set jose.JSONWebKeySet
	if err := json.Unmarshal(get(JWKSPath), &set); err != nil {
		t.Fatal(err)
	}
	if len(set.Keys) != 2 || !key.PublicKey.Equal(set.Keys[0].Key) || !rsaKey.PublicKey.Equal(set.Keys[1].Key) {
		t.Errorf("key set is %+v", set)
	}
}

func BenchmarkCertificate(b *testing.B) {
	ca := newAuthority(b)
	pool := ca.pool()
	a, _ := New(Config{ClientCAs: func() *x509.CertPool { return pool }})
	r := httptest.NewRequest("GET", "/api", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{
		ca.issue(b, pkix.Name{CommonName: "alice"}, x509.ExtKeyUsageClientAuth, time.Now().Add(time.Hour)),
	}}
	for b.Loop() {
		if _, ok, err := a.AuthenticateRequest(r); !ok {
			b.Fatal(err)
		}
	}
}
