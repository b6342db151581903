// Command apibench is a load generator for anything that speaks the Kubernetes API. It runs
// named cases in order and prints one JSON line for each, with throughput, latency and (where
// --pid names server processes) the CPU seconds and memory that those processes used during it.
//
//	apibench --kubeconfig k.conf --pid apiserver=123,etcd=124 \
//	    --cases create:n=2000:c=16,get:n=5000:c=64,list:ct=json:n=10
//
// Cases and their parameters (defaults in brackets); each takes ns= (--namespace), ct=
// (protobuf or json, --content-type) and id= (the case's name in the output) as well:
//
//	ready      [timeout=60s]            poll /readyz every 5 ms until 200; seconds are since --t0 where given
//	create     [n=1000 c=16 sched=none] create pods; names go on from the last create in the namespace
//	get        [n=5000 c=16]            get pods made by create, round robin, body read but not decoded
//	list       [mode=full n=10 c=1]     mode: full (consistent), page (limit=500 until done), rv0 (resourceVersion=0)
//	patch      [n=2000 c=16]            strategic merge patch of pods/status
//	update     [n=2000 c=16]            read-free PUT of configmaps (n/4 objects, no resourceVersion)
//	watch      [w=100 n=500 rate=0]     w raw watchers on pods, one writer doing n patches (rate: patches/s, 0 = flat out)
//	apply      [n=500 c=1 mode=create]  server-side apply of configmaps; mode: create, change, noop
//	delcol     [what=pods]              one DELETE of the whole collection, then wait until the list is empty
//	nodes      [n=5 c=16 first=0]       create Ready nodes with a Lease each, and take the not-ready taint off them
//	heartbeat  [n=5 c=16]               renew the Leases of n nodes once
//	bind       [n=5000 c=16]            create pods for the scheduler and wait until all have a node
//	deploy     [replicas=3]             create a Deployment, wait until all replicas have a node
//	services   [n=1000 c=16 endpoints=3] create Services with an EndpointSlice each
//	sleep      [d=10s]                  do nothing for d: idle CPU and memory of --pid
//
// With --profile DIR each case but those with profile=no is run while the server's CPU profile is
// taken, kept there as CASE.pprof; figures of such a run are not to be compared.
//
// Nodes that were made live until the end: their Leases are renewed when they are half a minute old.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// options are the command line.
type options struct {
	kubeconfig, contentType, namespace, prefix, pids, cases, profile string
	gzip                                                             bool
	conns                                                            int
	t0                                                               int64
}

func main() {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig file")
	flag.StringVar(&o.contentType, "content-type", "protobuf", "protobuf or json, for requests and answers")
	flag.BoolVar(&o.gzip, "gzip", false, "let the server compress answers (client-go's own default is true)")
	flag.IntVar(&o.conns, "conns", 1, "separate client transports; workers are spread over them")
	flag.StringVar(&o.namespace, "namespace", "apibench", "namespace to work in; created where missing")
	flag.StringVar(&o.prefix, "prefix", "p", "prefix of the names of created objects")
	flag.StringVar(&o.pids, "pid", "", "server processes to account, name=pid[,name=pid...]")
	flag.Int64Var(&o.t0, "t0", 0, "start of the server in Unix nanoseconds, for ready")
	flag.StringVar(&o.profile, "profile", "", "folder for CPU profiles of the server, one for each case")
	flag.StringVar(&o.cases, "cases", "", "comma-separated cases, each name[:key=value]...")
	flag.Parse()
	failed, err := runAll(context.Background(), o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "apibench:", err)
		os.Exit(1)
	}
	if failed {
		os.Exit(2)
	}
}

// runAll runs the cases; failed says that an operation of one of them did.
func runAll(ctx context.Context, o options) (failed bool, err error) {
	if o.kubeconfig == "" {
		return false, fmt.Errorf("--kubeconfig is required")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return false, fmt.Errorf("--kubeconfig: %w", err)
	}
	procs, err := parsePids(o.pids)
	if err != nil {
		return false, err
	}
	m := &machine{o: o, base: cfg, procs: procs, clients: map[string][]*kubernetes.Clientset{}, places: map[string]*place{}}
	ctx, cancel := context.WithCancel(ctx)
	var living sync.WaitGroup
	defer living.Wait()
	defer cancel()
	if err := m.keepAlive(ctx, &living); err != nil {
		return false, err
	}
	for _, spec := range strings.Split(o.cases, ",") {
		c, err := parseCase(spec, o)
		if err != nil {
			return failed, fmt.Errorf("--cases: %w", err)
		}
		r, err := m.run(ctx, c)
		if err != nil {
			return failed, fmt.Errorf("case %s: %w", spec, err)
		}
		if err := r.print(os.Stdout); err != nil {
			return failed, err
		}
		failed = failed || r.Errors > 0
	}
	return failed, nil
}

// machine is what outlives a case.
type machine struct {
	o       options
	base    *rest.Config
	procs   []proc
	clients map[string][]*kubernetes.Clientset // by content type
	places  map[string]*place                  // by namespace
	nodes   nodes
}

// place is a namespace with what the cases have put into it.
type place struct {
	ns      string
	created int // pods so far
}

// bench is what a case gets.
type bench struct {
	*place
	contentType string
	prefix      string
	t0          int64
	nodes       *nodes
	cfg         *rest.Config
	clients     []*kubernetes.Clientset
}

func (b *bench) client(worker int) *kubernetes.Clientset { return b.clients[worker%len(b.clients)] }

func (b *bench) podName(i int) string { return b.prefix + "-" + strconv.Itoa(i) }

func (m *machine) run(ctx context.Context, c *caseSpec) (*result, error) {
	cfg, clients, err := m.clientsOf(c.contentType)
	if err != nil {
		return nil, err
	}
	b := &bench{contentType: c.contentType, prefix: m.o.prefix, t0: m.o.t0, nodes: &m.nodes, cfg: cfg, clients: clients, place: &place{ns: c.namespace}}
	if c.place {
		if b.place = m.places[c.namespace]; b.place == nil {
			b.place = &place{ns: c.namespace}
			if err := b.prepare(ctx); err != nil {
				return nil, fmt.Errorf("prepare namespace %s: %w", c.namespace, err)
			}
			m.places[c.namespace] = b.place
		}
	}
	if m.o.profile != "" && !c.unprofiled {
		return b.profiled(ctx, c, m.o.profile)
	}
	return m.measure(ctx, b, c)
}

// keepAlive renews the Leases of nodes that cases make, until ctx ends.
func (m *machine) keepAlive(ctx context.Context, living *sync.WaitGroup) error {
	cfg, clients, err := m.clientsOf("protobuf")
	if err != nil {
		return err
	}
	b := &bench{prefix: m.o.prefix, nodes: &m.nodes, cfg: cfg, clients: clients, place: &place{}}
	living.Go(func() { m.nodes.live(ctx, b) })
	return nil
}

func (m *machine) clientsOf(contentType string) (*rest.Config, []*kubernetes.Clientset, error) {
	cfg := newConfig(m.base, contentType, m.o.gzip)
	if have := m.clients[contentType]; have != nil {
		return cfg, have, nil
	}
	for range max(1, m.o.conns) {
		cs, err := kubernetes.NewForConfig(newConfig(m.base, contentType, m.o.gzip))
		if err != nil {
			return nil, nil, fmt.Errorf("make client: %w", err)
		}
		m.clients[contentType] = append(m.clients[contentType], cs)
	}
	return cfg, m.clients[contentType], nil
}

// newConfig returns a config with a transport of its own: client-go shares transports between
// configs unless they have different Dial functions.
func newConfig(base *rest.Config, contentType string, gzip bool) *rest.Config {
	c := rest.CopyConfig(base)
	c.QPS, c.Burst = -1, 0
	c.UserAgent = "apibench"
	c.DisableCompression = !gzip
	c.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	c.ContentType = "application/" + contentType
	if contentType == "protobuf" {
		c.ContentType = "application/vnd.kubernetes.protobuf"
	}
	c.AcceptContentTypes = c.ContentType
	return c
}

// prepare makes the namespace and, since no controller may be running, its default service
// account, without which pods are refused. It also finds how many pods are there already.
func (b *bench) prepare(ctx context.Context) error {
	cs := b.clients[0]
	_, err := cs.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: b.ns}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = cs.CoreV1().ServiceAccounts(b.ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	pods, err := cs.CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{LabelSelector: "apibench=" + b.prefix})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if n, err := strconv.Atoi(strings.TrimPrefix(pods.Items[i].Name, b.prefix+"-")); err == nil && n >= b.created {
			b.created = n + 1
		}
	}
	// Admission sees the service account by its cache, so it is asked until it does.
	const tries = 100
	for i := 0; ; i++ {
		_, err := cs.CoreV1().Pods(b.ns).Create(ctx, b.pod("probe", "none"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || i == tries {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
