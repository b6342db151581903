package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

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
	// LoadBalancerPools replace those that Services get addresses of where given; "none": none any more.
	LoadBalancerPools []string
	// Audit replaces what cluster.json says where given.
	Audit AuditConfig
	// Etcd is the etcd to make a new cluster on; nil: one of its own.
	Etcd *ExternalEtcd
	// Reach says how other machines reach the cluster.
	Reach Reach
	// Join makes it a further control plane of another machine's cluster.
	Join ControlPlaneJoin
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
	if err := removedMember(p); err != nil {
		return nil, err
	}
	if err := o.joinControlPlane(ctx, s); err != nil {
		return nil, err
	}
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
	if err := r.await(ctx, "API server ready", waitAPI); err != nil {
		return nil, err
	}
	ctx, stop, err := r.startNodes(ctx) // they start while the first one gets ready
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := r.await(ctx, "node ready", waitNode); err != nil {
		return nil, err
	}
	if err := r.await(ctx, "cluster DNS answers", waitDNS); err != nil {
		return nil, err
	}
	if len(c.Nodes) > 0 {
		if err := r.await(ctx, "further nodes ready", waitFurther); err != nil {
			return nil, err
		}
	}
	if err := r.labelNodes(ctx); err != nil {
		return nil, err
	}
	return r, r.lookAround(ctx)
}

// await waits for a step, or tells which process ended that it needs.
func (r *Running) await(ctx context.Context, step string, wait func(context.Context, *Config, Paths) error) error {
	if err := wait(ctx, r.Config, r.Paths); err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
			err = cause
		}
		return fmt.Errorf("%s: %w (logs: %s)", step, err, r.Paths.Logs())
	}
	r.steps.done(step)
	return nil
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
	if err := c.takeFile(o.File, fresh); err != nil {
		return err
	}
	if err := c.settleNodes(p, o.Nodes, taken); err != nil {
		return err
	}
	if err := c.takeOptions(o, p); err != nil {
		return err
	}
	// Saved once, with all that was asked for: what is refused leaves nothing behind.
	if err := c.save(o.Dir); err != nil {
		return err
	}
	if err := noteElsewhere(c, o.Dir); err != nil {
		return err
	}
	if err := copyManifests(o.File, p); err != nil {
		return err
	}
	if _, err := EnsureCredentials(o.Dir, c); err != nil {
		return err
	}
	return os.MkdirAll(p.Run(), 0o755)
}

// takeOptions makes settings that are given the cluster's.
func (c *Config) takeOptions(o UpOptions, p Paths) error {
	if len(o.PlainHTTPRegistries) > 0 {
		c.PlainHTTPRegistries = o.PlainHTTPRegistries
	}
	if o.Registries != nil {
		c.Registries = o.Registries
	}
	if o.RuntimeEndpoint != "" {
		if err := c.useRuntime(o.RuntimeEndpoint); err != nil {
			return err
		}
	}
	if _, err := c.PodNetwork.change(o.PodNetwork); err != nil {
		return err
	}
	if err := c.takePools(o.LoadBalancerPools); err != nil {
		return err
	}
	if o.Audit != (AuditConfig{}) {
		if err := o.Audit.check(); err != nil {
			return err
		}
		c.Audit = o.Audit
	}
	_, err := c.keepIn(o.Etcd, p.Etcd())
	return err
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
			if err := removedMember(r.Paths); err != nil {
				return err
			}
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
