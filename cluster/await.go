package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// poll tries until it works. What it asks is another process, so there is nothing to wait on.
func poll(ctx context.Context, every time.Duration, try func(context.Context) error) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

func waitAPI(ctx context.Context, c *Config, p Paths) error {
	ca, err := os.ReadFile(p.PKI() + "/ca.crt")
	if err != nil {
		return fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()
	return poll(ctx, 10*time.Millisecond, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Server()+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
			return fmt.Errorf("/readyz says %s: %s", resp.Status, text)
		}
		return nil
	})
}

// AdminConfig is the client configuration of the admin kubeconfig, for this host's API server.
func AdminConfig(p Paths) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if c, err := Load(p.Dir); err == nil && c.ControlPlaneEndpoint != "" {
		cfg.Host = c.Server() // the kubeconfig names what stands in front of it
	}
	return cfg, nil
}

func waitNode(ctx context.Context, c *Config, p Paths) error { return waitReady(ctx, p, c.NodeName) }

// waitReady returns once all these nodes are.
func waitReady(ctx context.Context, p Paths, names ...string) error {
	client, err := adminClient(p)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := waitOneReady(ctx, client, name); err != nil {
			return err
		}
	}
	return nil
}

func adminClient(p Paths) (kubernetes.Interface, error) {
	cfg, err := AdminConfig(p)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

func waitOneReady(ctx context.Context, client kubernetes.Interface, name string) error {
	reason := fmt.Errorf("node %s is not registered", name)
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	for {
		w, err := client.CoreV1().Nodes().Watch(ctx, opts)
		if err != nil {
			return fmt.Errorf("watch node: %w", err)
		}
		for ev := range w.ResultChan() {
			node, ok := ev.Object.(*corev1.Node)
			if !ok {
				break
			}
			ready, why := nodeReady(node)
			if ready {
				w.Stop()
				return nil
			}
			reason = why
		}
		w.Stop()
		if ctx.Err() != nil {
			return reason
		}
	}
}

func nodeReady(n *corev1.Node) (bool, error) {
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue, fmt.Errorf("node %s is not ready: %s: %s", n.Name, cond.Reason, cond.Message)
		}
	}
	return false, fmt.Errorf("node %s has not reported yet", n.Name)
}

// waitDNS asks the cluster IP, so that it proves Services as well.
func waitDNS(ctx context.Context, c *Config, _ Paths) error {
	server := net.JoinHostPort(c.ServiceIP(dnsServiceIndex).String(), "53")
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		d := net.Dialer{Timeout: time.Second}
		return d.DialContext(ctx, network, server)
	}}
	return poll(ctx, 20*time.Millisecond, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := r.LookupHost(ctx, "kubernetes.default.svc."+c.Domain+".")
		return err
	})
}

// steps prints what is done with the time that it took.
type steps struct {
	mu   sync.Mutex
	w    io.Writer
	last time.Time
}

func newSteps(w io.Writer) *steps { return &steps{w: w, last: time.Now()} }

func (s *steps) done(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	fmt.Fprintf(s.w, "  %-42s %6.2f s\n", what, now.Sub(s.last).Seconds())
	s.last = now
}
