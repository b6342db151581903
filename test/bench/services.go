package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skiff-k8s/skiff/test/bench/procfs"
	"github.com/skiff-k8s/skiff/test/bench/record"
	"github.com/skiff-k8s/skiff/test/bench/side"
)

const (
	servicesCount = 10_000
	// changes are a little over a second apart: upstream's proxy collects for one.
	changesCount = 10
	changesApart = 1200 * time.Millisecond
	// A proxy that uses less than quietCPU for quietFor has programmed what it knows.
	quietFor = 3 * time.Second
	quietCPU = 0.02
)

// runServices is the stage of a proxy in front of many Services.
func runServices(r *stageRun) (err error) {
	if err := r.proxyRuns(); err != nil {
		r.notRun(err)
		return nil
	}
	k, ok, err := r.controlPlane()
	if err != nil || !ok {
		return err
	}
	defer func() { err = errors.Join(err, k.Stop()) }()
	setup := []string{"nodes:n=1:id=setup-node", fmt.Sprintf("services:n=%d:c=16:id=setup-services", servicesCount)}
	if err := r.generate(k, setup, ""); err != nil {
		return err
	}
	p := &proxied{r: r, k: k}
	if err := p.connect(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.listener.Close()) }()
	if r.round == 0 {
		return p.profiles()
	}
	loaded, err := p.start()
	if err != nil {
		return fmt.Errorf("%w%s", err, r.logs())
	}
	if r.wanted["services-load"] {
		r.add(record.Line{Result: loaded})
	}
	if r.wanted["services-change"] {
		changed, err := p.change()
		if err != nil {
			return err
		}
		r.add(record.Line{Result: changed})
	}
	return nil
}

// proxyRuns says why the side's proxy can not be run.
func (r *stageRun) proxyRuns() error {
	if r.side == record.Upstream {
		return side.Missing(r.twins, "kube-proxy")
	}
	if out, err := exec.CommandContext(r.ctx, r.skiff, "kube-proxy", "--help").CombinedOutput(); err != nil {
		line, _, _ := strings.Cut(string(out), "\n")
		return fmt.Errorf("skiff kube-proxy: %s", line)
	}
	return nil
}

// proxied is a proxy and what proves that it works.
type proxied struct {
	r        *stageRun
	k        *side.Cluster
	client   kubernetes.Interface
	listener net.Listener
	proxy    *side.Process
	vips     []string // of the first, a middle and the last Service
}

// connect finds the three Services and gives their endpoints' addresses to this host.
func (p *proxied) connect() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", p.k.Admin)
	if err != nil {
		return err
	}
	if p.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	addresses := []string{"172.20.0.1"} // the node's
	for _, i := range []int{0, servicesCount / 2, servicesCount - 1} {
		name := fmt.Sprintf("p-%d", i)
		svc, err := p.client.CoreV1().Services("bench").Get(p.r.ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get Service: %w", err)
		}
		p.vips = append(p.vips, svc.Spec.ClusterIP)
		slice, err := p.client.DiscoveryV1().EndpointSlices("bench").Get(p.r.ctx, name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get EndpointSlice: %w", err)
		}
		for _, e := range slice.Endpoints {
			addresses = append(addresses, e.Addresses...)
		}
	}
	// With one endpoint, each connection tells whether it is there.
	if err := p.patch(`[{"op":"remove","path":"/endpoints/2"},{"op":"remove","path":"/endpoints/1"}]`); err != nil {
		return err
	}
	for _, a := range addresses {
		if text, err := exec.CommandContext(p.r.ctx, "ip", "addr", "add", a+"/32", "dev", "lo").CombinedOutput(); err != nil {
			return fmt.Errorf("ip addr add %s: %w: %s", a, err, text)
		}
	}
	if p.listener, err = net.Listen("tcp4", "0.0.0.0:8080"); err != nil {
		return err
	}
	go func() {
		for {
			c, err := p.listener.Accept()
			if err != nil {
				return // closed
			}
			c.Close()
		}
	}()
	return nil
}

// patch changes the endpoints of the middle Service.
func (p *proxied) patch(json string) error {
	_, err := p.client.DiscoveryV1().EndpointSlices("bench").Patch(p.r.ctx, fmt.Sprintf("p-%d", servicesCount/2), types.JSONPatchType, []byte(json), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("change an endpoint: %w", err)
	}
	return nil
}

// reach connects through a Service.
func reach(ctx context.Context, vip string, within time.Duration) error {
	d := net.Dialer{Timeout: within}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(vip, "80"))
	if err != nil {
		return fmt.Errorf("connect through a Service: %w", err)
	}
	return c.Close()
}

// check connects to each of the three Services some times.
func (p *proxied) check(ctx context.Context) error {
	for _, vip := range p.vips {
		for range 6 {
			if err := reach(ctx, vip, time.Second); err != nil {
				return err
			}
		}
	}
	return nil
}

// connected waits until all three Services connect and returns how long that took.
func (p *proxied) connected(ctx context.Context, begin time.Time) (time.Duration, error) {
	const again = 5 * time.Millisecond
	for _, vip := range p.vips {
		for {
			tried := time.Now()
			err := reach(ctx, vip, again)
			if err == nil {
				break
			}
			// What refuses at once is not asked all the time: the cores are the proxy's.
			select {
			case <-time.After(again - time.Since(tried)):
			case <-ctx.Done():
				return 0, fmt.Errorf("Services are not programmed: %w", err)
			}
		}
	}
	return time.Since(begin), nil
}

// start runs the proxy and waits until all Services connect, and until it rests.
func (p *proxied) start(more ...string) (record.Result, error) {
	kubeconfig, err := p.k.Kubeconfig("system:kube-proxy")
	if err != nil {
		return record.Result{}, err
	}
	argv := []string{p.r.skiff, "kube-proxy"}
	if p.r.side == record.Upstream {
		argv = []string{filepath.Join(p.r.twins, "kube-proxy")}
	}
	argv = append(argv, "--kubeconfig="+kubeconfig, "--hostname-override=p-node-0", "--proxy-mode=nftables",
		"--cluster-cidr="+p.k.Config.PodCIDRs[0].String(), "--conntrack-max-per-core=0",
		"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	argv = append(argv, more...)
	begin := time.Now()
	if p.proxy, err = p.k.Exec("proxy", argv...); err != nil {
		return record.Result{}, err
	}
	ctx, cancel := context.WithTimeout(p.r.ctx, 4*time.Minute)
	defer cancel()
	var connects time.Duration
	connected := make(chan error, 1)
	go func() {
		var err error
		connects, err = p.connected(ctx, begin)
		connected <- err
	}()
	u, last, err := p.quiet(ctx, begin)
	if err != nil {
		cancel()
	}
	if err := errors.Join(err, <-connected); err != nil {
		return record.Result{}, err
	}
	return record.Result{Case: "services-load", Ops: servicesCount, Seconds: connects.Seconds(), Wall: last.Sub(begin).Seconds(),
		Servers: map[string]record.Usage{"proxy": u}}, nil
}

// quiet waits until the proxy rests. It returns what the proxy and its children used, and when it
// was last busy.
func (p *proxied) quiet(ctx context.Context, begin time.Time) (u record.Usage, last time.Time, err error) {
	last = begin
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return u, last, fmt.Errorf("the proxy does not rest: %w", errors.Join(ctx.Err(), err))
		}
		cpu, peak, used := family(p.proxy.PID)
		if used != nil {
			return u, last, used
		}
		now := time.Now()
		u.Peak = math.Max(u.Peak, peak)
		if cpu > u.CPU+quietCPU {
			u.CPU, last = cpu, now
		}
		if now.Sub(last) > quietFor {
			if err = p.check(ctx); err == nil {
				u.PSS, err = procfs.PSS(p.proxy.PID)
				return u, last, err
			}
		}
	}
}

// family is the CPU time that a process and its children, living or ended, have used, and the
// largest size that it and the living ones come to: upstream's proxy runs nft. The process itself
// is not looked through for that, which would halt it: it is loading.
func family(pid int) (cpu, peak float64, err error) {
	if cpu, err = procfs.Family(pid); err != nil {
		return 0, 0, err
	}
	if peak, err = procfs.Peak(pid); err != nil {
		return 0, 0, err
	}
	children, err := procfs.Descendants(pid)
	if err != nil {
		return 0, 0, err
	}
	for _, c := range children {
		// One that ended meanwhile is in its parent's figures the next time.
		if more, err := procfs.Family(c); err == nil {
			cpu += more
		}
		if more, err := procfs.PSS(c); err == nil {
			peak += more
		}
	}
	return cpu, peak, nil
}

// change takes an endpoint of one Service away and puts it back, some times. What the proxy uses
// meanwhile is lessened by what it uses at rest in the same time: minding its memory, mostly.
func (p *proxied) change() (record.Result, error) {
	idle, _, err := p.used(func() error { return p.pause(changesCount * changesApart) })
	if err != nil {
		return record.Result{}, err
	}
	var took []float64
	begin := time.Now()
	cpu, pss, err := p.used(func() error {
		tick := time.NewTicker(changesApart)
		defer tick.Stop()
		for i := range changesCount {
			d, err := p.changeOnce(i%2 == 1)
			if err != nil {
				return err
			}
			took = append(took, 1000*d.Seconds())
			select {
			case <-tick.C:
			case <-p.r.ctx.Done():
				return p.r.ctx.Err()
			}
		}
		// upstream's refuses now and then right after it has connected.
		_, err := p.connected(p.r.ctx, begin)
		return err
	})
	if err != nil {
		return record.Result{}, err
	}
	slices.Sort(took)
	wall := time.Since(begin).Seconds()
	return record.Result{Case: "services-change", Ops: changesCount, Seconds: wall, Wall: wall, P50ms: took[len(took)/2], MaxMs: took[len(took)-1],
		Extra:   map[string]float64{"idle_cpu_s": idle},
		Servers: map[string]record.Usage{"proxy": {CPU: math.Max(0, cpu-idle), PSS: pss, Peak: pss}}}, nil
}

// used is the CPU time in seconds that the proxy uses while something is done.
func (p *proxied) used(do func() error) (cpu, pss float64, err error) {
	before, _, err := family(p.proxy.PID)
	if err != nil {
		return 0, 0, err
	}
	if err := do(); err != nil {
		return 0, 0, err
	}
	after, _, err := family(p.proxy.PID)
	if err != nil {
		return 0, 0, err
	}
	pss, err = procfs.PSS(p.proxy.PID)
	return after - before, pss, err
}

func (p *proxied) pause(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-p.r.ctx.Done():
		return p.r.ctx.Err()
	}
}

// changeOnce makes the endpoint ready or not, and returns how long after the API server was asked
// connections show it.
func (p *proxied) changeOnce(ready bool) (time.Duration, error) {
	const pause, within = 200 * time.Microsecond, 5 * time.Second
	patched := make(chan error, 1)
	begin := time.Now()
	go func() {
		patched <- p.patch(fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/conditions/ready","value":%t}]`, ready))
	}()
	for {
		err := reach(p.r.ctx, p.vips[1], time.Second)
		took := time.Since(begin)
		switch {
		case ready && err == nil, !ready && errors.Is(err, syscall.ECONNREFUSED):
			return took, <-patched
		case err != nil && !errors.Is(err, syscall.ECONNREFUSED):
			return 0, err
		case took > within:
			return 0, fmt.Errorf("the endpoint became ready=%t, and connections do not show it after %s", ready, within)
		}
		if err := p.pause(pause); err != nil {
			return 0, err
		}
	}
}
