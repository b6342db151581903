package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/component/profiling"
)

// ServeConfig is the secure port of a component that runs alone. The zero value serves
// nothing.
type ServeConfig struct {
	Bind netip.AddrPort
	TLS  *tls.Config
	// ClientCA verifies clients' certificates, Client asks the API server about tokens and
	// rights. Without Client only certificates of system:masters open what is not for all.
	ClientCA *x509.CertPool
	Client   kubernetes.Interface
	// LookUpCA asks the API server for the CA that it verifies users with, and goes on asking
	// until it tells; with NeedCA the port is not opened before.
	LookUpCA, NeedCA bool
	// Profiling serves profiles of the process below profiling.Path.
	Profiling bool
	// Metrics writes those of the component, which follow the process's; nil: there are none.
	Metrics func(io.Writer) error
	// Public are paths for all, with what is below one that ends in "*".
	Public []string
}

// runServed runs a component and its port.
func runServed(ctx context.Context, name string, c component.Component, s ServeConfig, log *slog.Logger) error {
	group := component.NewGroup(log)
	if s.Bind.Port() != 0 {
		server, err := newSecureServer(s, log)
		if err != nil {
			return err
		}
		group.Add(component.Member{Name: "secure port", Component: server, Background: true})
	}
	group.Add(component.Member{Name: name, Component: c, Background: true})
	group.Add(trim())
	return group.Run(ctx)
}

func newSecureServer(s ServeConfig, log *slog.Logger) (component.Component, error) {
	l, err := net.Listen("tcp", s.Bind.String())
	if err != nil {
		return nil, fmt.Errorf("listen on the secure port: %w", err)
	}
	var ca atomic.Pointer[x509.CertPool]
	ca.Store(s.ClientCA)
	conf := s.TLS.Clone()
	conf.NextProtos = []string{"h2", "http/1.1"}
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool := ca.Load()
		if pool == nil {
			return nil, nil
		}
		c := conf.Clone()
		c.ClientCAs, c.ClientAuth = pool, tls.VerifyClientCertIfGiven
		return c, nil
	}
	serve := httpServer(tls.NewListener(l, conf), s.guard(s.paths(), log))
	if !s.LookUpCA {
		return serve, nil
	}
	lookUp := component.Func(func(ctx context.Context) error {
		if err := s.lookUp(ctx, &ca, log); err != nil {
			return nil // ctx has ended
		}
		<-ctx.Done()
		return nil
	})
	group := component.NewGroup(log)
	member := component.Member{Name: "client CA", Component: lookUp, Background: !s.NeedCA}
	if s.NeedCA {
		member.Ready = func(ctx context.Context) error {
			return poll(ctx, 100*time.Millisecond, func(context.Context) error {
				if ca.Load() == nil {
					return errors.New("the API server has not told the CA of clients")
				}
				return nil
			})
		}
	}
	group.Add(member)
	group.Add(component.Member{Name: "port", Component: serve, Background: true})
	return group, nil
}

// paths are what a component serves about itself.
func (s *ServeConfig) paths() http.Handler {
	mux := http.NewServeMux()
	for _, p := range []string{"/healthz", "/livez", "/readyz"} {
		mux.HandleFunc(p, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	}
	process := processMetrics()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		process.ServeHTTP(w, r)
		if s.Metrics != nil {
			_ = s.Metrics(w) // the client has gone
		}
	})
	if s.Profiling {
		mux.Handle(profiling.Path, profiling.Handler())
	}
	return mux
}

// lookUp asks until the API server tells what it verifies users with.
func (s *ServeConfig) lookUp(ctx context.Context, ca *atomic.Pointer[x509.CertPool], log *slog.Logger) error {
	return poll(ctx, 2*time.Second, func(ctx context.Context) error {
		m, err := s.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		if err != nil {
			log.Debug("look up the CA of clients", "err", err)
			return err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(m.Data["client-ca-file"])) {
			return errors.New("the API server publishes no CA")
		}
		ca.Store(pool)
		return nil
	})
}

// plainServer serves over HTTP at an address; nowhere if that is empty.
func plainServer(address string, h http.Handler, log *slog.Logger) component.Component {
	return component.Func(func(ctx context.Context) error {
		if address == "" {
			<-ctx.Done()
			return nil
		}
		l, err := net.Listen("tcp", address)
		if err != nil { // as upstream: the component is worth more than its health port
			log.Error("listen", "address", address, "err", err)
			<-ctx.Done()
			return nil
		}
		return httpServer(l, h).Run(ctx)
	})
}

func httpServer(l net.Listener, h http.Handler) component.Func {
	return func(ctx context.Context) error {
		s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		select {
		case err := <-served:
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		case <-ctx.Done():
		}
		err := s.Close()
		<-served
		return err
	}
}

// guard lets through what is for all and users whom the API server lets read the path.
func (s *ServeConfig) guard(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.public(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		u, err := s.user(r)
		if err != nil {
			log.Warn("authenticate request", "path", r.URL.Path, "err", err)
		}
		if u == nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		allowed, err := s.allowed(r, u)
		if err != nil {
			log.Warn("authorize request", "path", r.URL.Path, "user", u.Username, "err", err)
		}
		if !allowed {
			http.Error(w, fmt.Sprintf("Forbidden: user %q cannot %s path %q", u.Username, strings.ToLower(r.Method), r.URL.Path), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (s *ServeConfig) public(path string) bool {
	for _, p := range s.Public {
		if prefix, ok := strings.CutSuffix(p, "*"); p == path || ok && strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

func (s *ServeConfig) user(r *http.Request) (*authenticationv1.UserInfo, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		c := r.TLS.VerifiedChains[0][0]
		return &authenticationv1.UserInfo{Username: c.Subject.CommonName, Groups: append([]string{"system:authenticated"}, c.Subject.Organization...)}, nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" || s.Client == nil {
		return nil, nil
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	review, err := s.Client.AuthenticationV1().TokenReviews().Create(r.Context(), review, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review token: %w", err)
	}
	if !review.Status.Authenticated {
		return nil, nil
	}
	return &review.Status.User, nil
}

func (s *ServeConfig) allowed(r *http.Request, u *authenticationv1.UserInfo) (bool, error) {
	for _, g := range u.Groups {
		if g == "system:masters" {
			return true, nil
		}
	}
	if s.Client == nil {
		return false, errors.New("no API server to ask")
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.Username, UID: u.UID, Groups: u.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: r.URL.Path, Verb: strings.ToLower(r.Method)},
	}}
	for k, v := range u.Extra {
		review.Spec.Extra[k] = authorizationv1.ExtraValue(v)
	}
	review, err := s.Client.AuthorizationV1().SubjectAccessReviews().Create(r.Context(), review, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	return review.Status.Allowed, nil
}

// processMetrics are what is known of any process, under the names that Prometheus'
// clients use.
func processMetrics() http.Handler {
	start := time.Now()
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var b bytes.Buffer
		metric := func(kind, name, help string, value float64) {
			fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n%s %g\n", name, help, name, kind, name, value)
		}
		metric("gauge", "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", float64(start.UnixNano())/1e9)
		metric("gauge", "go_goroutines", "Number of goroutines that currently exist.", float64(runtime.NumGoroutine()))
		var use syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err == nil {
			seconds := time.Duration(use.Utime.Nano() + use.Stime.Nano()).Seconds()
			metric("counter", "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.", seconds)
		}
		if text, err := os.ReadFile("/proc/self/statm"); err == nil {
			var size, resident float64
			if _, err := fmt.Sscan(string(text), &size, &resident); err == nil {
				metric("gauge", "process_resident_memory_bytes", "Resident memory size in bytes.", resident*float64(os.Getpagesize()))
			}
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(b.Bytes()) // the client has gone
	})
}
