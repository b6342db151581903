package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/cluster/pki"
)

func TestTokens(t *testing.T) {
	hash := "sha256:" + strings.Repeat("0a", 32)
	for _, c := range []struct {
		in   string
		want Token
		err  string
	}{
		{in: "abcdef.0123456789abcdef", want: Token{ID: "abcdef", Secret: "0123456789abcdef"}},
		{in: "abcdef.0123456789abcdef@" + hash, want: Token{ID: "abcdef", Secret: "0123456789abcdef", CAHash: hash}},
		{in: "abcdef.0123456789abcdef@" + strings.ToUpper(hash), want: Token{ID: "abcdef", Secret: "0123456789abcdef", CAHash: hash}},
		{in: "", err: "no token"},
		{in: "abcdef", err: "no token"},
		{in: "ABCDEF.0123456789abcdef", err: "no token"},
		{in: "abcdef.0123456789abcdef@", err: "no hash"},
		{in: "abcdef.0123456789abcdef@sha256:00", err: "no hash"},
		{in: "abcdef.0123456789abcdef@md5:" + strings.Repeat("0a", 32), err: "no hash"},
	} {
		got, err := ParseToken(c.in)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %+v, %v; want %+v, %q", c.in, got, err, c.want, c.err)
		}
		if err == nil && !strings.EqualFold(got.String(), c.in) {
			t.Errorf("%q is written %q", c.in, got)
		}
	}
}

func TestServerURL(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":              "https://192.0.2.1:6443",
		"192.0.2.1:7443":         "https://192.0.2.1:7443",
		"https://k8s.example":    "https://k8s.example:6443",
		"https://k8s.example/":   "https://k8s.example:6443",
		"https://[2001:db8::1]":  "https://[2001:db8::1]:6443",
		"http://192.0.2.1":       "",
		"https://h/path":         "",
		"https://u:p@h":          "",
		"https://":               "",
		"https://192.0.2.1:port": "",
	} {
		got, err := serverURL(in)
		if got != want || (err == nil) != (want != "") || err != nil && !strings.HasPrefix(err.Error(), "--server ") {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestClock(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		there time.Time
		want  string
	}{
		{now, ""}, {now.Add(4 * time.Minute), ""}, {now.Add(-4 * time.Minute), ""},
		{now.Add(2 * time.Hour), "2h0m0s behind"}, {now.Add(-48 * time.Hour), "48h0m0s ahead of"},
	} {
		err := checkClock(c.there.Format(http.TimeFormat), now)
		if (err == nil) != (c.want == "") || err != nil && !(strings.Contains(err.Error(), c.want) && strings.Contains(err.Error(), "set the clock")) {
			t.Errorf("there %s: %v, want %q", c.there, err, c.want)
		}
	}
	if err := checkClock("", now); err != nil {
		t.Errorf("no Date: %v", err)
	}
}

// A node joins, and starts again with what it has.
func TestJoin(t *testing.T) {
	s := newServer(t, nil)
	o := s.options(t, "one", s.token(t, time.Hour))
	n, err := Join(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	first := s.node()
	if n.Domain != first.Domain || fmt.Sprint(n.PodCIDRs, n.ServiceCIDRs, n.DNS) != fmt.Sprint(first.PodCIDRs, first.ServiceCIDRs, first.DNS) {
		t.Errorf("it took %+v of the cluster %+v", n, first)
	}
	if n.Bridge == first.Bridge || n.CgroupRoot == first.CgroupRoot {
		t.Errorf("%s and %s are the first node's", n.Bridge, n.CgroupRoot)
	}
	open(t, n, o.Dir).register(t)

	for name, change := range map[string]func(*JoinOptions){
		"without a token":             func(o *JoinOptions) { o.Token = "" },
		"without anything":            func(o *JoinOptions) { o.Token, o.Server, o.NodeName = "", "", "" },
		"with a token that is no use": func(o *JoinOptions) { o.Token = "abcdef.0123456789abcdef" },
	} {
		again := o
		change(&again)
		if m, err := Join(t.Context(), again); err != nil || m.NodeName != "one" || m.Server != n.Server || m.Bridge != n.Bridge {
			t.Errorf("again %s: %+v, %v", name, m, err)
		}
	}
	other := o
	other.NodeName = "two"
	if _, err := Join(t.Context(), other); err == nil || !strings.Contains(err.Error(), `is node "one"`) {
		t.Errorf("as another node: %v", err)
	}
}

// A node that was off until its certificate had ended is told what to do, in one line, and a new
// token is all that it takes.
func TestJoinAgain(t *testing.T) {
	s := newServer(t, nil)
	j := s.join(t, "one")
	own, err := pki.Dir{Path: s.paths.PKI()}.Authority("ca", "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := own.Sign(pki.Leaf{CommonName: "system:node:one", Organizations: []string{"system:nodes"}, Client: true}, time.Now().Add(-2*time.Hour), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.paths.clientStore().Save(pair.Cert, pair.Key); err != nil {
		t.Fatal(err)
	}
	// As it is started by whoever knows of none of this.
	o := JoinOptions{Dir: j.paths.Dir, Progress: io.Discard, Logger: slog.New(slog.DiscardHandler)}
	_, err = Join(t.Context(), o)
	if err == nil {
		t.Fatal("a certificate that has ended is taken for good")
	}
	for _, want := range []string{`certificate of node "one" ended at 20`, "skiff token create", "skiff agent --token TOKEN --data-dir " + o.Dir} {
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q, without %q or in several lines", err, want)
		}
	}
	o.Token = "zzzzzz.0123456789abcdef@" + s.token(t, time.Hour).CAHash
	if _, err := Join(t.Context(), o); err == nil || !strings.Contains(err.Error(), "does not know the token") {
		t.Errorf("with a token that is no use: %v", err)
	}
	o.Token = s.token(t, time.Hour).String()
	n, err := Join(t.Context(), o)
	if err != nil || n.NodeName != "one" || n.Server != j.Server || n.Bridge != j.Bridge {
		t.Fatalf("with a new one: %+v, %v", n, err)
	}
	open(t, n, o.Dir).register(t)
}

// With kubeadm's token, and without any hash where that is asked for by name.
func TestJoinWithoutHashInToken(t *testing.T) {
	s := newServer(t, nil)
	token := s.token(t, time.Hour)
	hash := token.CAHash
	token.CAHash = ""
	o := s.options(t, "one", token)
	o.CAHash = hash
	if _, err := Join(t.Context(), o); err != nil {
		t.Errorf("--ca-cert-hash: %v", err)
	}
	o = s.options(t, "two", token)
	o.SkipCA = true
	eventually(t, "the token is signed with", func() error {
		_, err := Join(t.Context(), o)
		return err
	})
}

// Each reason not to join is one line that names it and the mend, and leaves nothing that
// passes for a node.
func TestJoinRefused(t *testing.T) {
	s := newServer(t, nil)
	live := s.join(t, "live")
	live.register(t)
	good, other := s.token(t, time.Hour), strings.Repeat("0a", 32)
	for _, c := range []struct {
		name   string
		change func(*JoinOptions)
		want   []string
	}{
		{"no token", func(o *JoinOptions) { o.Token = "" }, []string{"--token is required", "skiff token create"}},
		{"no server", func(o *JoinOptions) { o.Server = "" }, []string{"--server is required"}},
		{"no hash", func(o *JoinOptions) { o.Token = good.Bearer() }, []string{"no hash of the cluster's CA", "--ca-cert-hash"}},
		{"two hashes", func(o *JoinOptions) { o.CAHash = "sha256:" + other }, []string{"--ca-cert-hash differs"}},
		{"bad hash", func(o *JoinOptions) { o.CAHash = "sha1:00" }, []string{"--ca-cert-hash is no hash"}},
		{"wrong CA", func(o *JoinOptions) { o.Token = good.Bearer() + "@sha256:" + other }, []string{"another CA than the token says", good.CAHash, "skiff token create"}},
		{"wrong secret", func(o *JoinOptions) { o.Token = good.ID + ".0000000000000000@" + good.CAHash }, []string{"does not know the token", "skiff token create"}},
		{"unknown token", func(o *JoinOptions) { o.Token = "zzzzzz.0123456789abcdef@" + good.CAHash }, []string{"does not know the token", "skiff token create"}},
		{"unknown token and no hash", func(o *JoinOptions) { o.Token, o.SkipCA = "zzzzzz.0123456789abcdef", true }, []string{"does not know the token"}},
		{"wrong secret and no hash", func(o *JoinOptions) { o.Token, o.SkipCA = good.ID+".0000000000000000", true }, []string{"does not know the"}},
		{"name taken", func(o *JoinOptions) { o.NodeName = "live" }, []string{`"live" is taken`, "--node-name", "kubectl delete node live"}},
		{"bad name", func(o *JoinOptions) { o.NodeName = "No" }, []string{`--node-name "No"`}},
		{"no such address", func(o *JoinOptions) { o.NodeIPs = []netip.Addr{netip.MustParseAddr("203.0.113.9")} }, []string{"--node-ip 203.0.113.9", "no such address"}},
		{"not the certificate's name", func(o *JoinOptions) { o.Server = fmt.Sprintf("https://127.0.0.2:%d", s.APIPort) }, []string{"not for that name", "--tls-san"}},
		{"a cluster's directory", func(o *JoinOptions) { o.Dir = s.paths.Dir }, []string{"holds a cluster of its own"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := s.options(t, "new", good)
			c.change(&o)
			_, err := Join(t.Context(), o)
			if err == nil {
				t.Fatal("it joined")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("it says %q, not %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than a line: %q", err)
			}
			if _, err := LoadNode(o.Dir); err == nil {
				t.Error("it left a node.json")
			}
		})
	}
	// A token that has expired, and a node that is silent.
	expired := s.token(t, time.Nanosecond)
	o := s.options(t, "new", expired)
	if _, err := Join(t.Context(), o); err == nil || !strings.Contains(err.Error(), "expired") {
		t.Errorf("with a token that has expired: %v", err)
	}
	if err := DeleteToken(t.Context(), s.client, good.String()); err != nil {
		t.Fatal(err)
	}
	if _, err := Join(t.Context(), s.options(t, "new", good)); err == nil {
		t.Error("it joined with a token that was removed")
	}
	node, err := s.client.CoreV1().Nodes().Get(t.Context(), "live", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	if err := nameFree(t.Context(), s.client, "live"); err == nil {
		t.Error("the name of a live node is free")
	}
	if _, err := s.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := nameFree(t.Context(), s.client, "live"); err != nil {
		t.Errorf("the name of a silent node: %v", err)
	}
}

// impostor serves cluster-info with a certificate and a clock of its own.
func impostor(t *testing.T, info *corev1.ConfigMap, cert tls.Certificate, date string) string {
	t.Helper()
	l := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if date != "" {
			w.Header().Set("Date", date)
		}
		fmt.Fprintf(w, `{"data":{"kubeconfig":%q}}`, info.Data["kubeconfig"])
	}))
	l.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	l.Config.ErrorLog = nil
	l.StartTLS()
	t.Cleanup(l.Close)
	return l.URL
}

// Whoever is not the cluster's server is told from it, and so is a wrong clock.
func TestJoinDistrusts(t *testing.T) {
	s := newServer(t, nil)
	token := s.token(t, time.Hour)
	info, err := s.client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := pki.Dir{Path: s.paths.PKI()}.Authority("ca", "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := pki.Dir{Path: t.TempDir()}.Authority("ca", "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	sign := func(ca *pki.Authority, at time.Time) tls.Certificate {
		pair, err := ca.Sign(pki.Leaf{CommonName: "x", Server: true, IPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}}, at, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := certificate(pair)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	now := time.Now()
	for _, c := range []struct{ name, server, want string }{
		{"its CA, copied, but not its key", impostor(t, info, sign(foreign, now), ""), "not signed by the cluster's CA"},
		{"certificate that has ended", impostor(t, info, sign(own, now.Add(-3*time.Hour)), ""), "set the clock right"},
		{"certificate that is not good yet", impostor(t, info, sign(own, now.Add(3*time.Hour)), ""), "set the clock right"},
		{"another clock", impostor(t, info, sign(own, now), now.Add(-time.Hour).UTC().Format(http.TimeFormat)), "ahead of the server's"},
		{"no TLS", plain(t), "does not speak TLS"},
	} {
		o := s.options(t, "new", token)
		o.Server = c.server
		if _, err := Join(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func plain(t *testing.T) string {
	l := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(l.Close)
	return strings.Replace(l.URL, "http://", "https://", 1)
}

// A server that is not there yet is waited for, with word of it, and the wait can be ended.
func TestJoinWaitsForServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	said, progress := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		buf := make([]byte, 4096)
		n, _ := said.Read(buf)
		if bytes.Contains(buf[:n], []byte("cannot be reached")) {
			cancel()
		}
		_, _ = io.Copy(io.Discard, said)
	}()
	o := JoinOptions{
		Dir: filepath.Join(t.TempDir(), "agent"), Server: address, Token: "abcdef.0123456789abcdef@sha256:" + strings.Repeat("0a", 32),
		NodeName: "new", NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Progress: progress,
	}
	if _, err := Join(ctx, o); err == nil || !strings.Contains(err.Error(), "interrupted") || ctx.Err() == nil {
		t.Errorf("%v, want the end of what was interrupted", err)
	}
	if _, err := os.Stat(o.Dir); !os.IsNotExist(err) {
		t.Errorf("it left a directory: %v", err)
	}
}

// A node among the cluster's own ranges would be taken for a pod or Service.
func TestNodeAmongClusterRanges(t *testing.T) {
	n := NodeConfig{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:1::/56")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}}
	for ip, want := range map[string]string{
		"192.0.2.1": "", "10.244.3.4": "pods (10.244.0.0/16)", "10.96.0.10": "Services (10.96.0.0/16)", "fd00:1::9": "pods (fd00:1::/56)", "fd00:2::9": "",
	} {
		n.NodeIPs = []netip.Addr{netip.MustParseAddr(ip)}
		err := n.check()
		if (err == nil) != (want == "") || err != nil && !(strings.Contains(err.Error(), want) && strings.Contains(err.Error(), "--node-ip")) {
			t.Errorf("%s: %v, want %q", ip, err, want)
		}
	}
}
