package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// BenchmarkUp is from `skiff up` to a node that is Ready and a first pod that runs, with the
// CPU time that both processes took by then.
func BenchmarkUp(b *testing.B) {
	for b.Loop() {
		begin := time.Now()
		c := up(b)
		b.ReportMetric(time.Since(begin).Seconds(), "s/ready")
		b.ReportMetric(cpuSeconds(b, c.pid(b, "control-plane")), "cpu-s/control-plane")
		b.ReportMetric(cpuSeconds(b, c.pid(b, "node")), "cpu-s/node")
		client := c.client(b)
		startPods(b, client, "first", 1)
		b.ReportMetric(time.Since(begin).Seconds(), "s/first-pod")
	}
}

// BenchmarkAPIReady is the CPU time of the control plane from exec until /readyz says ok.
func BenchmarkAPIReady(b *testing.B) {
	for b.Loop() {
		c := up(b)
		c.kill(b, "node")
		c.kill(b, "control-plane")
		begin := time.Now()
		cmd := c.start(b, "control-plane")
		for !c.apiReady() {
			time.Sleep(time.Millisecond)
		}
		b.ReportMetric(time.Since(begin).Seconds(), "s/ready")
		b.ReportMetric(cpuSeconds(b, cmd), "cpu-s/ready")
	}
}

// BenchmarkIdle is what both processes hold and burn when nothing happens.
func BenchmarkIdle(b *testing.B) {
	for b.Loop() {
		c := up(b)
		const settle, measure = 20 * time.Second, 30 * time.Second
		time.Sleep(settle)
		roles := []string{"control-plane", "node"}
		var before [2]float64
		for i, r := range roles {
			before[i] = cpuSeconds(b, c.pid(b, r))
		}
		time.Sleep(measure)
		total := 0.0
		for i, r := range roles {
			pid := c.pid(b, r)
			pss := pssMB(b, pid)
			total += pss
			b.ReportMetric(pss, "MB-pss/"+r)
			b.ReportMetric((cpuSeconds(b, pid)-before[i])/measure.Seconds()*100, "%cpu/"+r)
		}
		b.ReportMetric(total, "MB-pss/total")
	}
}

// BenchmarkPodStart is from create through the API to Running, with the image at hand: 20 pods one by
// one, then 50 at once.
func BenchmarkPodStart(b *testing.B) {
	for b.Loop() {
		c := up(b)
		client := c.client(b)
		startPods(b, client, "warm", 1)
		node := c.pid(b, "node")
		before := cpuSeconds(b, node)
		var each []time.Duration
		for i := range 20 {
			each = append(each, startPods(b, client, fmt.Sprintf("one-%d", i), 1))
		}
		slices.Sort(each)
		b.ReportMetric(float64(each[len(each)/2].Milliseconds()), "ms-p50/pod")
		b.ReportMetric(float64(each[len(each)-1].Milliseconds()), "ms-max/pod")
		b.ReportMetric((cpuSeconds(b, node)-before)*1000/20, "node-cpu-ms/pod")
		b.ReportMetric(startPods(b, client, "many", 50).Seconds(), "s/50-pods")
	}
}

// startPods creates n pods at once and returns how long it took until all ran.
func startPods(b *testing.B, client kubernetes.Interface, name string, n int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	w, err := client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: "bench=" + name})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	begin := time.Now()
	errs := make(chan error, n)
	for i := range n {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i), Labels: map[string]string{"bench": name}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "hello", Image: "skiff.local/hello:v1"}}},
		}
		go func() {
			_, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
	running := map[string]bool{}
	for ev := range w.ResultChan() {
		if ev.Type == watch.Error {
			b.Fatalf("watch: %v", ev.Object)
		}
		if p, ok := ev.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning {
			if running[p.Name] = true; len(running) == n {
				return time.Since(begin)
			}
		}
	}
	b.Fatalf("only %d of %d pods run", len(running), n)
	return 0
}

func (c *cluster) client(b *testing.B) kubernetes.Interface {
	b.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", c.dir+"/kubeconfig")
	if err != nil {
		b.Fatal(err)
	}
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		b.Fatal(err)
	}
	return client
}

// clockTicks per second: USER_HZ, 100 on every Linux that skiff runs on.
const clockTicks = 100

func cpuSeconds(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// The command's name, in parentheses, may hold spaces.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / clockTicks
}

func pssMB(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb / 1024
		}
	}
	b.Fatal("no Pss")
	return 0
}
