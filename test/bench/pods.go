package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/test/bench/procfs"
	"github.com/skiff-k8s/skiff/test/bench/record"
	"github.com/skiff-k8s/skiff/test/bench/side"
)

// runPods is the stage of a whole node: skiff up, or upstream's kubelet and containerd.
func runPods(r *stageRun) error {
	if r.side == record.Upstream {
		return r.upstreamPods()
	}
	return r.skiffPods()
}

func (r *stageRun) skiffPods() (err error) {
	n := &node{r: r, dir: filepath.Join(r.work, "d"), agents: []string{string(cluster.Node)}, keeper: "skiff-monitor"}
	defer func() { err = errors.Join(err, n.down()) }()
	begin := time.Now()
	if out, err := exec.CommandContext(r.ctx, r.skiff, "up", "--detach", "--name", "bench", "--data-dir", n.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("skiff up: %w: %s", err, out)
	}
	ready := time.Since(begin)
	if err := n.connect(cluster.Paths{Dir: n.dir}.Kubeconfig()); err != nil {
		return err
	}
	if n.usage, err = skiffUsage(n.dir); err != nil {
		return err
	}
	if err := n.record("up", 1, ready, nil); err != nil {
		return err
	}
	if _, err := n.start("first", 1); err != nil {
		return err
	}
	if err := n.record("first-pod", 1, time.Since(begin), nil); err != nil {
		return err
	}
	return n.steady()
}

// upstreamPods runs a node of upstream's: without kube-proxy and DNS, which pods do not wait for.
func (r *stageRun) upstreamPods() (err error) {
	missing := side.MissingNode(r.twins)
	if missing == nil {
		missing = side.Missing(r.twins, side.ControlPlane()...)
	}
	if missing != nil {
		r.notRun(missing)
		return nil
	}
	for _, name := range []string{"up", "first-pod"} {
		if r.wanted[name] && r.round != 0 {
			r.add(record.Line{NotRun: "nothing of upstream's starts all of a node at once; DNS is an addon", Result: record.Result{Case: name}})
		}
	}
	k, ok, err := r.controlPlane()
	if err != nil || !ok {
		return err
	}
	r.audit = false
	own, err := k.StartNode(r.ctx)
	if err != nil {
		return errors.Join(err, k.Stop())
	}
	defer func() { err = errors.Join(err, own.Stop()) }()
	n := &node{r: r, usage: upstreamUsage(k, own), agents: []string{"kubelet", "containerd"}, keeper: "containerd-shim"}
	if err := n.connect(k.Admin); err != nil {
		return err
	}
	if err := n.ready(k.Config.NodeName); err != nil {
		return fmt.Errorf("%w%s", err, r.logs())
	}
	if _, err := n.start("first", 1); err != nil {
		return fmt.Errorf("%w%s", err, r.logs())
	}
	return n.steady()
}

// node is a running one-node cluster.
type node struct {
	r      *stageRun
	dir    string
	config *rest.Config // of the administrator
	client kubernetes.Interface
	usage  func() (map[string]record.Usage, error)
	before map[string]record.Usage // when the case began
	// agents are the processes of usage that run pods; keeper is how those begin that the
	// runtime keeps for each container.
	agents []string
	keeper string
	extra  map[string]float64 // of the next record
}

func (n *node) connect(kubeconfig string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1
	n.config = cfg
	n.client, err = kubernetes.NewForConfig(cfg)
	return err
}

// ready waits for the node.
func (n *node) ready(name string) error {
	ctx, cancel := context.WithTimeout(n.r.ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := n.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(got.Spec.Taints) == 0 {
			for _, c := range got.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					return nil
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("node %s is not ready: %w", name, errors.Join(err, ctx.Err()))
		}
	}
}

// skiffUsage is of both processes, what they ran included, and of the pods' control group.
func skiffUsage(dir string) (func() (map[string]record.Usage, error), error) {
	conf, err := cluster.Load(dir)
	if err != nil {
		return nil, err
	}
	pids := map[string]int{}
	for _, role := range []cluster.Role{cluster.ControlPlane, cluster.Node} {
		pid, err := process.Running(cluster.Paths{Dir: dir}.Lock(role))
		if err != nil || pid == 0 {
			return nil, fmt.Errorf("find the %s process: %w", role, err)
		}
		pids[string(role)] = pid
	}
	return func() (map[string]record.Usage, error) {
		all := map[string]record.Usage{}
		for name, pid := range pids {
			u, err := usage(pid)
			if err != nil {
				return nil, err
			}
			all[name] = u
		}
		pods, err := side.GroupCPU("skiff-" + conf.ID[:8])
		all["pods"] = record.Usage{CPU: pods}
		return all, err
	}, nil
}

// upstreamUsage is of the control plane's processes, the kubelet, and containerd with all that it started.
func upstreamUsage(k *side.Cluster, own *side.Node) func() (map[string]record.Usage, error) {
	return func() (map[string]record.Usage, error) {
		all := map[string]record.Usage{}
		for _, p := range k.Processes {
			u, err := usage(p.PID)
			if err != nil {
				return nil, err
			}
			if p.Name == "kubelet" || p.Name == "containerd" {
				if u.CPU, err = own.CPU(p.Name); err != nil {
					return nil, err
				}
			}
			all[p.Name] = u
		}
		return all, nil
	}
}

func usage(pid int) (u record.Usage, err error) {
	if u.CPU, err = procfs.Family(pid); err != nil {
		return u, err
	}
	if u.PSS, err = procfs.PSS(pid); err != nil {
		return u, err
	}
	u.Peak, err = procfs.Peak(pid)
	return u, err
}

func (n *node) down() error {
	// Even when the run is broken off.
	out, err := exec.CommandContext(context.WithoutCancel(n.r.ctx), n.r.skiff, "down", "--purge", "--data-dir", n.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("skiff down: %w: %s", err, out)
	}
	return nil
}

// steady measures what comes after the start: rest, and pods.
func (n *node) steady() error {
	if n.r.round == 0 {
		return n.profiles()
	}
	if n.r.wanted["node-idle"] { // the first pod runs
		for _, d := range []time.Duration{20 * time.Second, 30 * time.Second} { // settle, measure
			if err := n.begin(); err != nil {
				return err
			}
			if err := n.wait(d); err != nil {
				return err
			}
		}
		if err := n.record("node-idle", 0, 30*time.Second, nil); err != nil {
			return err
		}
	}
	atRest := 0.0
	if n.r.wanted["pods-110"] {
		if err := n.wait(20 * time.Second); err != nil {
			return err
		}
		var err error
		if atRest, err = n.memory(); err != nil {
			return err
		}
	}
	if err := n.begin(); err != nil {
		return err
	}
	var each []time.Duration
	begin := time.Now()
	for i := range 20 {
		d, err := n.start(fmt.Sprintf("one-%d", i), 1)
		if err != nil {
			return err
		}
		each = append(each, d)
	}
	if err := n.record("pod-start", 20, time.Since(begin), each); err != nil {
		return err
	}
	if err := n.begin(); err != nil {
		return err
	}
	d, err := n.start("many", 50)
	if err != nil {
		return err
	}
	if err := n.record("pods-50", 50, d, nil); err != nil || !n.r.wanted["pods-110"] {
		return err
	}
	return n.full(atRest)
}

// fullNode is how many pods a node takes by default.
const fullNode = 110

// full starts what a full node lacks and measures the memory that all its pods take of the
// kubelet, the runtime and the process that the runtime keeps for each container.
func (n *node) full(atRest float64) error {
	if err := n.begin(); err != nil {
		return err
	}
	count := fullNode - 1 - 20 - 50
	took, err := n.start("rest", count)
	if err != nil {
		return err
	}
	if err := n.wait(30 * time.Second); err != nil { // what starting left has been given back then
		return err
	}
	now, err := n.memory()
	if err != nil {
		return err
	}
	keepers, err := procfs.Named(n.keeper, n.r.work)
	if err != nil {
		return err
	}
	if len(keepers) < fullNode {
		return fmt.Errorf("%d processes %s… for %d pods", len(keepers), n.keeper, fullNode)
	}
	sum := 0.0
	for _, pid := range keepers {
		pss, err := procfs.PSS(pid)
		if err != nil {
			return err
		}
		sum += pss
	}
	// The first pod ran already when the processes were looked at.
	n.extra = map[string]float64{"keepers_mb": sum / fullNode, "growth_mb": (now - atRest) / (fullNode - 1)}
	defer func() { n.extra = nil }()
	return n.record("pods-110", count, took, nil)
}

// memory is the PSS of the kubelet's and the runtime's processes together, in MB.
func (n *node) memory() (float64, error) {
	all, err := n.usage()
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, name := range n.agents {
		sum += all[name].PSS
	}
	return sum, nil
}

func (n *node) wait(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-n.r.ctx.Done():
		return n.r.ctx.Err()
	}
}

// begin makes CPU count from now.
func (n *node) begin() (err error) {
	n.before, err = n.usage()
	return err
}

func (n *node) record(name string, ops int, took time.Duration, each []time.Duration) error {
	res := record.Result{Case: name, Ops: ops, Seconds: took.Seconds(), Wall: took.Seconds(), Extra: n.extra}
	if len(each) > 0 {
		slices.Sort(each)
		res.P50ms, res.P99ms, res.MaxMs = ms(each[len(each)/2]), ms(each[len(each)-1]), ms(each[len(each)-1])
	}
	var err error
	if res.Servers, err = n.usage(); err != nil {
		return err
	}
	for name, u := range res.Servers {
		u.CPU -= n.before[name].CPU
		res.Servers[name] = u
	}
	if n.r.wanted[name] && n.r.round != 0 {
		n.r.add(record.Line{Result: res})
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// start creates n pods at once and returns how long it took until all ran.
func (n *node) start(name string, count int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(n.r.ctx, 5*time.Minute)
	defer cancel()
	pods := n.client.CoreV1().Pods("default")
	w, err := pods.Watch(ctx, metav1.ListOptions{LabelSelector: "bench=" + name})
	if err != nil {
		return 0, fmt.Errorf("watch pods: %w", err)
	}
	defer w.Stop()
	begin := time.Now()
	errs := make(chan error, count)
	for i := range count {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i), Labels: map[string]string{"bench": name}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "hello", Image: side.HelloImage}}},
		}
		go func() {
			_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
			errs <- err
		}()
	}
	for range count {
		if err := <-errs; err != nil {
			return 0, fmt.Errorf("create pod: %w", err)
		}
	}
	running := map[string]bool{}
	for ev := range w.ResultChan() {
		if ev.Type == watch.Error {
			return 0, fmt.Errorf("watch pods: %v", ev.Object)
		}
		if p, ok := ev.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning {
			if running[p.Name] = true; len(running) == count {
				return time.Since(begin), nil
			}
		}
	}
	return 0, fmt.Errorf("only %d of %d pods %s run", len(running), count, strings.TrimSuffix(name, "-0"))
}
