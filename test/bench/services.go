package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
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

// check connects to each of the three Services some times.
func (p *proxied) check(ctx context.Context) error {
	d := net.Dialer{Timeout: time.Second}
	for _, vip := range p.vips {
		for range 6 {
			c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(vip, "80"))
			if err != nil {
				return fmt.Errorf("connect through a Service: %w", err)
			}
			c.Close()
		}
	}
	return nil
}

// start runs the proxy and waits until it has programmed all Services: it is quiet, and they connect.
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
	u, last, err := p.quiet(begin, 4*time.Minute)
	if err != nil {
		return record.Result{}, err
	}
	wall := last.Sub(begin).Seconds()
	return record.Result{Case: "services-load", Ops: servicesCount, Seconds: wall, Wall: wall, Servers: map[string]record.Usage{"proxy": u}}, nil
}

// quiet waits until the proxy rests and its Services connect. It returns what the proxy and its
// children used, and when it was last busy.
func (p *proxied) quiet(begin time.Time, within time.Duration) (u record.Usage, last time.Time, err error) {
	last = begin
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.r.ctx.Done():
			return u, last, p.r.ctx.Err()
		}
		cpu, pss, err := family(p.proxy.PID)
		if err != nil {
			return u, last, err
		}
		now := time.Now()
		u.PSS, u.Peak = pss, math.Max(u.Peak, pss)
		if cpu > u.CPU+quietCPU {
			u.CPU, last = cpu, now
		}
		if now.Sub(last) > quietFor {
			if err = p.check(p.r.ctx); err == nil {
				return u, last, nil
			}
		}
		if now.Sub(begin) > within {
			return u, last, fmt.Errorf("Services are not programmed after %s: %w", within, errors.Join(err, errors.New("the proxy does not rest")))
		}
	}
}

// family is what a process and its children, living or ended, use: upstream's proxy runs nft.
func family(pid int) (cpu, pss float64, err error) {
	if cpu, err = procfs.Family(pid); err != nil {
		return 0, 0, err
	}
	if pss, err = procfs.PSS(pid); err != nil {
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
			pss += more
		}
	}
	return cpu, pss, nil
}

// change takes endpoints of one Service away and puts them back.
func (p *proxied) change() (record.Result, error) {
	before, _, err := family(p.proxy.PID)
	if err != nil {
		return record.Result{}, err
	}
	begin := time.Now()
	tick := time.NewTicker(changesApart)
	defer tick.Stop()
	for i := range changesCount {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/endpoints/0/conditions/ready","value":%t}]`, i%2 == 1)
		if _, err := p.client.DiscoveryV1().EndpointSlices("bench").Patch(p.r.ctx, fmt.Sprintf("p-%d", servicesCount/2), types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return record.Result{}, fmt.Errorf("change an endpoint: %w", err)
		}
		select {
		case <-tick.C:
		case <-p.r.ctx.Done():
			return record.Result{}, p.r.ctx.Err()
		}
	}
	cpu, pss, err := family(p.proxy.PID)
	if err != nil {
		return record.Result{}, err
	}
	if err := p.check(p.r.ctx); err != nil {
		return record.Result{}, err
	}
	wall := time.Since(begin).Seconds()
	return record.Result{Case: "services-change", Ops: changesCount, Seconds: wall, Wall: wall,
		Servers: map[string]record.Usage{"proxy": {CPU: cpu - before, PSS: pss, Peak: pss}}}, nil
}
