package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/preempt"
)

// TestUpstreamAgrees gives the same random clusters to upstream's kube-scheduler, a process
// against a real API server, and to the cycle here: the node that upstream takes must be one of
// those that score best here; when it finds none, its words must be the same, and the victims
// of preemption too. make -C test/upstream scheduler runs it.
func TestUpstreamAgrees(t *testing.T) {
	program := os.Getenv("SKIFF_UPSTREAM_SCHEDULER")
	if program == "" {
		t.Skip("SKIFF_UPSTREAM_SCHEDULER names no kube-scheduler; make -C test/upstream scheduler does")
	}
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return otherwise
	}
	rounds, seed := number("SKIFF_ROUNDS", 20), number("SKIFF_SEED", 1)
	l := newLab(t, program)
	for i := range rounds {
		l.round(uint64(seed + i))
	}
	t.Logf("%d placed, %d waiting, %d preempting, %d doubtful at first", l.placed, l.waiting, l.preempting, l.doubtful)
	if l.placed == 0 || l.waiting == 0 || l.preempting == 0 {
		t.Error("not all outcomes were seen")
	}
}

// lab is an API server with upstream's scheduler.
type lab struct {
	t       *testing.T
	client  kubernetes.Interface
	rnd     *rand.Rand
	serial  int
	spaces  []*corev1.Namespace
	classes []string

	placed, waiting, preempting, doubtful int
}

func newLab(t *testing.T, program string) *lab {
	s := servertest.Full(t)
	client, err := kubernetes.NewForConfig(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, client: client}
	ctx := t.Context()
	for name, team := range map[string]string{"ns": "a", "other": "b", "third": "a"} {
		ns, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}, metav1.CreateOptions{})
		l.must(err)
		l.spaces = append(l.spaces, ns)
		_, err = client.CoreV1().ServiceAccounts(name).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		l.must(err)
	}
	for i, v := range []int32{1, 10, 100} {
		name := fmt.Sprint("class", i)
		_, err := client.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: v}, metav1.CreateOptions{})
		l.must(err)
		l.classes = append(l.classes, name)
	}
	// A kubeconfig's credentials are not used without TLS.
	to, err := url.Parse(s.URL)
	l.must(err)
	door := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Header.Set("Authorization", "Bearer "+servertest.AdminToken)
	}})
	t.Cleanup(func() {
		door.CloseClientConnections()
		door.Close()
	})
	config := filepath.Join(t.TempDir(), "kubeconfig")
	l.must(clientcmd.WriteToFile(clientcmdapi.Config{CurrentContext: "c",
		Clusters: map[string]*clientcmdapi.Cluster{"c": {Server: door.URL}},
		Contexts: map[string]*clientcmdapi.Context{"c": {Cluster: "c"}},
	}, config))
	cmd := exec.Command(program, "--kubeconfig", config, "--leader-elect=false", "--secure-port=0", "--authentication-skip-lookup", "--kube-api-qps=1000", "--kube-api-burst=1000")
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	l.must(err)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	l.must(cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("upstream's log ends: %s", text[max(0, len(text)-2000):])
		}
	})
	return l
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// round is some nodes, and pods on them by turns.
func (l *lab) round(seed uint64) {
	l.rnd = rand.New(rand.NewPCG(seed, 11))
	ctx := l.t.Context()
	var nodes []*corev1.Node
	for i := range 2 + l.rnd.IntN(5) {
		n := l.node(fmt.Sprintf("n%d-%d", seed, i))
		made, err := l.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		l.must(err)
		made.Spec.Taints = n.Spec.Taints // without not-ready, which admission adds
		made, err = l.client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{})
		l.must(err)
		made.Status = n.Status
		made, err = l.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
		l.must(err)
		nodes = append(nodes, made)
	}
	time.Sleep(200 * time.Millisecond) // upstream cannot be asked what it has seen; who doubts asks twice
	for turn := range 8 {
		l.turn(fmt.Sprintf("seed %d turn %d", seed, turn), nodes)
	}
	for _, n := range nodes {
		l.must(l.client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}))
	}
}

// outcome of scheduling one pod.
type outcome struct {
	nodes   []string // one of them
	message string
	victims map[string][]string // by the node to nominate, one of them
}

func (o outcome) String() string {
	return fmt.Sprintf("nodes %v, message %q, victims %v", o.nodes, o.message, o.victims)
}

func (l *lab) turn(what string, nodes []*corev1.Node) {
	ctx := l.t.Context()
	var pods []*corev1.Pod
	var budgets []*policyv1.PodDisruptionBudget
	if l.rnd.IntN(2) == 0 {
		for _, app := range []string{"x", "y"} {
			b, err := l.client.PolicyV1().PodDisruptionBudgets("ns").Create(ctx, &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Name: app},
				Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			}, metav1.CreateOptions{})
			l.must(err)
			b.Status.DisruptionsAllowed = int32(l.rnd.IntN(2))
			b, err = l.client.PolicyV1().PodDisruptionBudgets("ns").UpdateStatus(ctx, b, metav1.UpdateOptions{})
			l.must(err)
			budgets = append(budgets, b)
		}
	}
	started := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range l.rnd.IntN(9) {
		p := l.pod()
		p.Spec.NodeName = nodes[l.rnd.IntN(len(nodes))].Name
		// No scheduler puts pods together that want the same port: of those upstream forgets one
		// with the other.
		for _, q := range pods {
			if q.Spec.NodeName == p.Spec.NodeName && len(q.Spec.Containers[0].Ports) > 0 {
				p.Spec.Containers[0].Ports = nil
			}
		}
		made, err := l.client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
		l.must(err)
		made.Status.Phase, made.Status.StartTime = corev1.PodRunning, &metav1.Time{Time: started.Add(time.Duration(i) * time.Minute)}
		made, err = l.client.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, made, metav1.UpdateOptions{})
		l.must(err)
		pods = append(pods, made)
	}
	p := l.pod()
	var ours, theirs outcome
	for try := range 4 {
		pending := p.DeepCopy()
		pending.Name = fmt.Sprint(p.Name, "-", try)
		made, err := l.client.CoreV1().Pods(p.Namespace).Create(ctx, pending, metav1.CreateOptions{})
		l.must(err)
		ours = l.here(nodes, pods, budgets, made)
		theirs = l.there(made, ours)
		l.must(l.client.CoreV1().Pods(p.Namespace).Delete(ctx, made.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}))
		if agree(ours, theirs) {
			break
		}
		if try == 3 {
			l.t.Errorf("%s: upstream: %v\nhere: %v\npod %s\n%s", what, theirs, ours, describe(made), l.describe(nodes, pods))
		} else if len(theirs.victims) > 0 {
			break // they are gone: it cannot be asked again
		}
		l.doubtful++
		time.Sleep(100 * time.Millisecond)
	}
	if !agree(ours, theirs) && len(theirs.victims) > 0 {
		l.t.Errorf("%s: upstream: %v\nhere: %v\npod %s\n%s", what, theirs, ours, describe(p), l.describe(nodes, pods))
	}
	switch {
	case len(theirs.victims) > 0:
		l.preempting++
	case len(theirs.nodes) > 0:
		l.placed++
	default:
		l.waiting++
	}
	for _, q := range pods {
		l.must(ignoreGone(l.client.CoreV1().Pods(q.Namespace).Delete(ctx, q.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})))
	}
	for _, b := range budgets {
		l.must(l.client.PolicyV1().PodDisruptionBudgets(b.Namespace).Delete(ctx, b.Name, metav1.DeleteOptions{}))
	}
}

// agree: what upstream did is among what could be done here.
func agree(ours, theirs outcome) bool {
	if len(theirs.nodes) > 0 {
		return slices.Contains(ours.nodes, theirs.nodes[0])
	}
	if len(ours.nodes) > 0 {
		return false
	}
	for node, victims := range theirs.victims {
		return slices.Equal(ours.victims[node], victims)
	}
	return len(ours.victims) == 0 && ours.message == theirs.message
}

// here is what the cycle decides.
func (l *lab) here(nodes []*corev1.Node, pods []*corev1.Pod, budgets []*policyv1.PodDisruptionBudget, p *corev1.Pod) outcome {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	s, err := New(Config{Client: client, Informers: factory, Events: events.NewFakeRecorder(1), Logger: slog.New(slog.DiscardHandler), Seed: 1})
	l.must(err)
	for _, ns := range l.spaces {
		l.must(factory.Core().V1().Namespaces().Informer().GetStore().Add(ns))
	}
	now := time.Now()
	for _, n := range nodes {
		s.nodeChanged(nil, n, now)
	}
	for _, q := range pods {
		s.podChanged(nil, q, now)
	}
	s.podChanged(nil, p, now)
	s.snap.Order()
	pr := s.profiles[corev1.DefaultSchedulerName]
	c := &framework.Cycle{Pod: s.queue.Get(p.UID).Pod, Snap: s.snap, Now: now}
	node, f := s.find(c, pr)
	if node != nil {
		return outcome{nodes: s.search.bestNodes()}
	}
	o := outcome{victims: map[string][]string{}}
	for start := range nodes { // where upstream begins is random
		pl := preempt.New(&s.search, func() ([]*policyv1.PodDisruptionBudget, error) { return budgets, nil },
			func(n int) int { return start % n }, func(*framework.Cycle, *framework.Nomination) {})
		n, st := pl.PostFilter(c, f.statuses)
		if n == nil || n.Node == "" {
			f.post = st.Message()
			break
		}
		var names []string
		for _, v := range n.Victims {
			names = append(names, v.Name)
		}
		slices.Sort(names)
		o.victims[n.Node] = names
	}
	o.message = f.message()
	return o
}

// bestNodes are the names of those that share the best score of the cycle before.
func (s *searcher) bestNodes() []string {
	var names []string
	if len(s.feasible) == 1 {
		return []string{s.feasible[0].Name()}
	}
	top := slices.Max(s.totals)
	for i, n := range s.feasible {
		if s.totals[i] == top {
			names = append(names, n.Name())
		}
	}
	return names
}

// there waits for what upstream decides.
func (l *lab) there(p *corev1.Pod, ours outcome) outcome {
	var o outcome
	err := wait.PollUntilContextTimeout(l.t.Context(), 5*time.Millisecond, 20*time.Second, true, func(ctx context.Context) (bool, error) {
		now, err := l.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if now.Spec.NodeName != "" {
			o = outcome{nodes: []string{now.Spec.NodeName}}
			return true, nil
		}
		text := message(now)
		if text == "" {
			return false, nil
		}
		_, o.message, _ = strings.Cut(text, ": ")
		if now.Status.NominatedNodeName == "" {
			return true, nil
		}
		// Victims go one after the other.
		list, err := l.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		var gone []string
		for i := range list.Items {
			if list.Items[i].DeletionTimestamp != nil {
				gone = append(gone, list.Items[i].Name)
			}
		}
		slices.Sort(gone)
		o.victims = map[string][]string{now.Status.NominatedNodeName: gone}
		return len(gone) > 0 && len(gone) >= len(ours.victims[now.Status.NominatedNodeName]), nil
	})
	if err != nil && o.message == "" && len(o.nodes) == 0 {
		l.t.Fatalf("waiting for upstream to decide about %s: %v", p.Name, err)
	}
	return o
}
