// Package server is the kubelet's HTTPS API: what the API server needs of a node
// (logs, exec, attach, port-forward), and what monitors read (pods, stats,
// metrics). Everyone who asks is authenticated and authorized by the API server.
package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/component/profiling"
	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// Pods are the pods of the node with their latest statuses.
type Pods interface {
	Pods() []*corev1.Pod
	// Find by name; uid may narrow it down. nil: no such pod.
	Find(namespace, name string, uid types.UID) *corev1.Pod
}

// Config of a Server.
type Config struct {
	NodeName string
	// Listener, or Addr to listen on.
	Listener net.Listener
	Addr     string
	// GetCertificate is the serving certificate, asked for each connection.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// ClientCA verifies client certificates; nil: none are accepted.
	ClientCA *x509.CertPool
	// Client reviews tokens and access; nil: only client certificates, which may do all.
	Client kubernetes.Interface
	Pods   Pods
	CRI    *cri.Client
	// Stats answers /stats/summary, Metrics /metrics/resource.
	Stats   func(context.Context) (any, error)
	Metrics func(context.Context) ([]byte, error)
	// Own are the kubelet's own metrics, /metrics; nil: none.
	Own func() []byte
	// Healthy says what is wrong with the kubelet; nil: nothing.
	Healthy func() error
	// LogDir is served under /logs/; empty: not.
	LogDir string
	// Profiling serves profiles of the process below profiling.Path.
	Profiling bool
	Logger    *slog.Logger
}

// Server serves the kubelet's API.
type Server struct {
	cfg  Config
	auth *auth
	addr chan net.Addr
}

// New makes a server; Run serves.
func New(cfg Config) (*Server, error) {
	if cfg.GetCertificate == nil {
		return nil, fmt.Errorf("kubelet server: a serving certificate is required")
	}
	if cfg.Addr == "" && cfg.Listener == nil {
		return nil, fmt.Errorf("kubelet server: an address to listen on is required")
	}
	return &Server{cfg: cfg, auth: newAuth(cfg), addr: make(chan net.Addr, 1)}, nil
}

// Addr is where the server listens, once it does.
func (s *Server) Addr() <-chan net.Addr { return s.addr }

// Run serves until the context ends; streams are cut then.
func (s *Server) Run(ctx context.Context) error {
	l := s.cfg.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", s.cfg.Addr); err != nil {
			return fmt.Errorf("listen for the kubelet's API: %w", err)
		}
	}
	s.addr <- l.Addr()
	tlsConfig := &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: s.cfg.GetCertificate, NextProtos: []string{"h2", "http/1.1"},
		ClientCAs: s.cfg.ClientCA,
	}
	if s.cfg.ClientCA != nil {
		tlsConfig.ClientAuth = tls.VerifyClientCertIfGiven
	}
	srv := &http.Server{
		Handler: s.Handler(), TLSConfig: tlsConfig, BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 30 * time.Second, IdleTimeout: 90 * time.Second,
		ErrorLog: slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
	}
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		<-ctx.Done()
		srv.Close()
	}()
	err := srv.ServeTLS(l, "", "")
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	if ctx.Err() != nil {
		wg.Wait()
	}
	if err != nil {
		return fmt.Errorf("serve the kubelet's API: %w", err)
	}
	return nil
}

// Handler is the API with its authentication and authorization.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.auth.allow(w, r) {
			return
		}
		s.route(w, r)
	})
}

func (s *Server) route(w http.ResponseWriter, r *http.Request) {
	p := path.Clean(r.URL.Path)
	parts := strings.Split(strings.TrimPrefix(p, "/"), "/")
	rest := parts[1:]
	switch parts[0] {
	case "healthz":
		if s.cfg.Healthy != nil {
			if err := s.cfg.Healthy(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		fmt.Fprint(w, "ok")
	case "pods":
		s.podList(w, s.cfg.Pods.Pods())
	case "runningpods":
		s.runningPods(w, r)
	case "containerLogs":
		s.containerLogs(w, r, rest)
	case "exec":
		s.exec(w, r, rest)
	case "attach":
		s.attach(w, r, rest)
	case "portForward":
		s.portForward(w, r, rest)
	case "run":
		s.runCommand(w, r, rest)
	case "stats":
		s.stats(w, r, p)
	case "metrics":
		s.metrics(w, r, p)
	case "logs":
		if s.cfg.LogDir == "" {
			http.NotFound(w, r)
			return
		}
		http.StripPrefix("/logs/", http.FileServer(http.Dir(s.cfg.LogDir))).ServeHTTP(w, r)
	case "debug":
		if !s.cfg.Profiling || !strings.HasPrefix(p, strings.TrimSuffix(profiling.Path, "/")) {
			http.NotFound(w, r)
			return
		}
		profiling.Handler().ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (s *Server) podList(w http.ResponseWriter, pods []*corev1.Pod) {
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	s.json(w, list)
}

// runningPods are those of which the runtime has something running, in bare form.
func (s *Server) runningPods(w http.ResponseWriter, r *http.Request) {
	pods, err := s.cfg.CRI.Pods(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	var out []*corev1.Pod
	for _, p := range pods {
		o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
		for _, c := range p.Containers {
			if c.State == cri.StateRunning {
				o.Spec.Containers = append(o.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
			}
		}
		if len(o.Spec.Containers) > 0 {
			out = append(out, o)
		}
	}
	s.podList(w, out)
}

func (s *Server) stats(w http.ResponseWriter, r *http.Request, p string) {
	if p != "/stats/summary" || s.cfg.Stats == nil {
		http.NotFound(w, r)
		return
	}
	v, err := s.cfg.Stats(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	s.json(w, v)
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request, p string) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if p != "/metrics/resource" || s.cfg.Metrics == nil {
		if p == "/metrics" && s.cfg.Own != nil {
			_, _ = w.Write(s.cfg.Own())
			return
		}
		if p == "/metrics" || p == "/metrics/cadvisor" || p == "/metrics/probes" {
			return // nothing to tell
		}
		http.NotFound(w, r)
		return
	}
	raw, err := s.cfg.Metrics(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(raw)
}

func (s *Server) json(w http.ResponseWriter, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw)
}
