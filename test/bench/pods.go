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
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/test/bench/procfs"
	"github.com/skiff-k8s/skiff/test/bench/record"
	"github.com/skiff-k8s/skiff/test/bench/side"
)

// runPods is the stage of a whole node: skiff up, or upstream's kubelet and containerd.
func runPods(r *stageRun) (err error) {
	if r.round == 0 {
		return nil // no profile of a node's processes
	}
	if r.side == record.Upstream {
		missing := side.Missing(r.twins, "containerd", "containerd-shim-runc-v2", "runc")
		if missing == nil {
			missing = errors.New("no recipe for containerd yet")
		}
		r.notRun(missing)
		return nil
	}
	n := &node{r: r, dir: filepath.Join(r.work, "d"), pids: map[string]int{}}
	defer func() { err = errors.Join(err, n.down()) }()
	begin := time.Now()
	if out, err := exec.CommandContext(r.ctx, r.skiff, "up", "--detach", "--name", "bench", "--data-dir", n.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("skiff up: %w: %s", err, out)
	}
	ready := time.Since(begin)
	if err := n.find(); err != nil {
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

// node is a running one-node cluster.
type node struct {
	r      *stageRun
	dir    string
	client kubernetes.Interface
	pids   map[string]int
	before map[string]float64 // CPU, when the case began
}

func (n *node) find() error {
	cfg, err := clientcmd.BuildConfigFromFlags("", cluster.Paths{Dir: n.dir}.Kubeconfig())
	if err != nil {
		return err
	}
	cfg.QPS = -1
	if n.client, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	for _, role := range []cluster.Role{cluster.ControlPlane, cluster.Node} {
		pid, err := process.Running(cluster.Paths{Dir: n.dir}.Lock(role))
		if err != nil || pid == 0 {
			return fmt.Errorf("find the %s process: %w", role, err)
		}
		n.pids[string(role)] = pid
	}
	return nil
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
	if n.r.wanted["node-idle"] {
		for _, d := range []time.Duration{20 * time.Second, 30 * time.Second} { // settle, measure
			if err := n.begin(); err != nil {
				return err
			}
			select {
			case <-time.After(d):
			case <-n.r.ctx.Done():
				return n.r.ctx.Err()
			}
		}
		if err := n.record("node-idle", 0, 30*time.Second, nil); err != nil {
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
	return n.record("pods-50", 50, d, nil)
}

// begin makes CPU count from now.
func (n *node) begin() error {
	n.before = map[string]float64{}
	for name, pid := range n.pids {
		cpu, err := procfs.Family(pid)
		if err != nil {
			return err
		}
		n.before[name] = cpu
	}
	return nil
}

func (n *node) record(name string, ops int, took time.Duration, each []time.Duration) error {
	res := record.Result{Case: name, Ops: ops, Seconds: took.Seconds(), Wall: took.Seconds(), Servers: map[string]record.Usage{}}
	if len(each) > 0 {
		slices.Sort(each)
		res.P50ms, res.P99ms, res.MaxMs = ms(each[len(each)/2]), ms(each[len(each)-1]), ms(each[len(each)-1])
	}
	var err error
	for name, pid := range n.pids {
		var u record.Usage
		if u.CPU, err = procfs.Family(pid); err != nil {
			return err
		}
		u.CPU -= n.before[name]
		if u.PSS, err = procfs.PSS(pid); err != nil {
			return err
		}
		if u.Peak, err = procfs.Peak(pid); err != nil {
			return err
		}
		res.Servers[name] = u
	}
	if n.r.wanted[name] {
		n.r.add(record.Line{Result: res})
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// start creates n pods at once and returns how long it took until all ran.
func (n *node) start(name string, count int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(n.r.ctx, 2*time.Minute)
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
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "hello", Image: "skiff.local/hello:v1"}}},
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
