package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skiff-k8s/skiff/cluster/check"
	"github.com/skiff-k8s/skiff/cluster/clusterfile"
	"github.com/skiff-k8s/skiff/cluster/process"
)

// UpOptions say which cluster to bring up.
type UpOptions struct {
	Name, Dir string
	// Executable is the skiff binary that both processes run.
	Executable string
	// PlainHTTPRegistries replace those of cluster.json where given.
	PlainHTTPRegistries []string
	// Registries replaces how registries are reached where given.
	Registries *Registries
	// RuntimeEndpoint replaces the CRI socket of another runtime where given, unix:///…;
	// "built-in": none again.
	RuntimeEndpoint string
	// PodNetwork changes how pods are connected where given.
	PodNetwork PodNetworkChange
	// Without replaces the components that others run where given.
	Without []string
	// Audit replaces what cluster.json says where given.
	Audit AuditConfig
	// Etcd is the etcd to make a new cluster on; nil: one of its own.
	Etcd *ExternalEtcd
	// Reach says how other machines reach the cluster.
	Reach Reach
	// Wanted is what a new cluster must have.
	Wanted Wanted
	// Nodes is how many nodes the cluster has on this host, the first one included; 0: as many as it has.
	Nodes int
	// File is what the cluster is to be like; nil: as it is.
	File *clusterfile.File
	// Progress gets a line for each step.
	Progress io.Writer
	// Timeout for everything; 0: two minutes.
	Timeout time.Duration
}

// Running is a cluster that is up.
type Running struct {
	Config *Config
	Paths  Paths
	opts   UpOptions
	steps  *steps
}

// Up starts what does not run of a cluster and returns once its node is Ready and its DNS
// answers, or with the reason why not. Processes that it started go on after an error.
func Up(ctx context.Context, o UpOptions) (*Running, error) {
	if err := Validate(o.Name, o.Dir); err != nil {
		return nil, err
	}
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	p := Paths{o.Dir}
	s := newSteps(o.Progress)
	c, release, err := prepare(p, o, s)
	if err != nil {
		return nil, err
	}
	defer release()
	r := &Running{Config: c, Paths: p, opts: o, steps: s}
	if err := r.endOutdated(ctx); err != nil {
		return nil, err
	}
	for _, role := range []Role{ControlPlane, Node} {
		child, err := r.ensure(r.role(role))
		if err != nil {
			return nil, err
		}
		var stop context.CancelFunc
		ctx, stop = r.tend(ctx, r.role(role), child)
		defer stop()
	}
	further := func(context.Context, *Config, Paths) error { return nil }
	for _, step := range []struct {
		name string
		wait func(context.Context, *Config, Paths) error
	}{
		{"API server ready", waitAPI},
		{"", func(context.Context, *Config, Paths) error {
			var stop context.CancelFunc
			var err error
			ctx, stop, err = r.startNodes(ctx)
			further = func(ctx context.Context, _ *Config, _ Paths) error { defer stop(); return r.waitNodes(ctx) }
			return err
		}},
		{"node ready", waitNode},
		{"cluster DNS answers", waitDNS},
		{"further nodes ready", func(ctx context.Context, c *Config, p Paths) error { return further(ctx, c, p) }},
	} {
		if err := step.wait(ctx, c, p); err != nil {
			if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
				err = cause
			}
			if step.name == "" {
				return nil, err
			}
			return nil, fmt.Errorf("%s: %w (logs: %s)", step.name, err, p.Logs())
		}
		if step.name != "" && (step.name != "further nodes ready" || len(c.Nodes) > 0) {
			s.done(step.name)
		}
	}
	return r, nil
}

// prepare checks the host and holds the cluster's configuration, which it makes with what it needs.
func prepare(p Paths, o UpOptions, s *steps) (*Config, func(), error) {
	if err := checkWithout(o.Without); err != nil {
		return nil, nil, err
	}
	running, err := anyRunning(p)
	if err != nil {
		return nil, nil, err
	}
	c, fresh, err := loadOrNew(o.Name, o.Dir)
	if err != nil {
		return nil, nil, err
	}
	if o.Without != nil {
		c.Without = o.Without
	}
	fileOptions(&o, fresh)
	taken, err := c.settle(o, fresh, running)
	if err != nil {
		return nil, nil, inFile(o.File, err)
	}
	if err := c.checkFile(o.File, fresh, running); err != nil {
		return nil, nil, err
	}
	if !running {
		if err := check.Problems(check.Host(check.Config{DataDir: o.Dir, Ports: c.ports()})); err != nil {
			return nil, nil, err
		}
		s.done("host checked")
	}
	release, err := changing(p)
	if err != nil {
		return nil, nil, err
	}
	if err := c.update(p, o, running, taken); err != nil {
		release()
		return nil, nil, inFile(o.File, err)
	}
	s.done("certificates and kubeconfig")
	return c, release, nil
}

// update brings configuration, credentials and directories to what is asked for.
func (c *Config) update(p Paths, o UpOptions, running bool, taken []claim) error {
	now, err := Load(o.Dir)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err == nil {
		c.Nodes, c.NodeSubnets = now.Nodes, now.NodeSubnets // as whoever held the lock left them
	}
	if !running {
		if len(o.Reach.NodeIPs) == 0 { // else they are those that are given
			if err := c.followAddress(o.Dir); err != nil {
				return err
			}
		}
		if err := c.take(o.Reach, p); err != nil {
			return err
		}
	}
	if err := c.takeFile(o.File, p, fresh); err != nil {
		return err
	}
	if err := c.settleNodes(p, o.Nodes, taken); err != nil {
		return err
	}
	if err := c.save(o.Dir); err != nil {
		return err
	}
	if err := noteElsewhere(c, o.Dir); err != nil {
		return err
	}
	changed := len(o.PlainHTTPRegistries) > 0
	if changed {
		c.PlainHTTPRegistries = o.PlainHTTPRegistries
	}
	if o.Registries != nil {
		c.Registries, changed = o.Registries, true
	}
	if o.RuntimeEndpoint != "" {
		if err := c.useRuntime(o.RuntimeEndpoint); err != nil {
			return err
		}
		changed = true
	}
	if news, err := c.PodNetwork.change(o.PodNetwork); err != nil {
		return err
	} else if news {
		changed = true
	}
	if o.Audit != (AuditConfig{}) {
		if err := o.Audit.check(); err != nil {
			return err
		}
		c.Audit, changed = o.Audit, true
	}
	if changed {
		if err := c.save(o.Dir); err != nil {
			return err
		}
	}
	if changed, err := c.keepIn(o.Etcd, p.Etcd()); err != nil {
		return err
	} else if changed {
		if err := c.save(o.Dir); err != nil {
			return err
		}
	}
	if _, err := EnsureCredentials(o.Dir, c); err != nil {
		return err
	}
	return os.MkdirAll(p.Run(), 0o755)
}

func anyRunning(p Paths) (bool, error) {
	for _, role := range []Role{ControlPlane, Node} {
		pid, err := process.Running(p.Lock(role))
		if err != nil || pid != 0 {
			return pid != 0, err
		}
	}
	return false, nil
}

// program is a process of the cluster.
type program struct {
	// name is what people are told.
	name      string
	lock, log string
	argv      []string
	place     process.Place
	// before makes what the process needs; nil: nothing.
	before func() error
}

func (r *Running) role(role Role) program {
	return program{
		name: "the " + string(role) + " process", lock: r.Paths.Lock(role), log: r.Paths.Log(role),
		argv: []string{r.opts.Executable, string(role), "--data-dir", r.Paths.Dir},
	}
}

// short is the name as a step.
func (p program) short() string {
	return strings.TrimSuffix(strings.TrimPrefix(p.name, "the "), " process")
}

// ensure starts a program unless it runs; nil: it ran already.
func (r *Running) ensure(p program) (*process.Child, error) {
	pid, err := process.Running(p.lock)
	if err != nil {
		return nil, err
	}
	if pid != 0 {
		r.steps.done(fmt.Sprintf("%s runs already (pid %d)", p.short(), pid))
		return nil, nil
	}
	return r.launch(p)
}

func (r *Running) launch(p program) (*process.Child, error) {
	child, err := p.start()
	if err != nil {
		return nil, err
	}
	r.steps.done(fmt.Sprintf("%s started (pid %d)", p.short(), child.PID))
	return child, nil
}

func (p program) start() (*process.Child, error) {
	if p.before != nil {
		if err := p.before(); err != nil {
			return nil, fmt.Errorf("start %s: %w", p.name, err)
		}
	}
	return p.place.Start(p.argv, p.log)
}

// tend ends the context with the reason when a child ends. A program that ran already may have been
// killed a moment ago and only be on its way out: then it is started.
func (r *Running) tend(ctx context.Context, p program, child *process.Child) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if child == nil {
			if err := process.WaitFree(ctx, p.lock); err != nil {
				cancel(err)
				return
			}
			if ctx.Err() != nil {
				return
			}
			var err error
			if child, err = r.launch(p); err != nil {
				cancel(err)
				return
			}
		}
		select {
		case <-child.Done:
			cancel(fmt.Errorf("%s ended: %w", p.name, child.Failure()))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// Supervise starts processes again that end, until ctx ends.
func (r *Running) Supervise(ctx context.Context) error {
	const pause = time.Second // between two looks, and so between two starts
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		programs, err := r.programs()
		if err != nil {
			return err
		}
		for _, p := range programs {
			if pid, err := process.Running(p.lock); err != nil {
				return err
			} else if pid != 0 {
				continue
			}
			fmt.Fprintf(r.opts.Progress, "%s ended; starting it again (log: %s)\n", p.name, p.log)
			if _, err := p.start(); err != nil {
				return err
			}
		}
	}
}

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

// AdminConfig is the client configuration of the admin kubeconfig.
func AdminConfig(p Paths) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
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
