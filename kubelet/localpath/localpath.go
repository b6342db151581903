// Package localpath is the part of the local-path provisioner that runs on each node: it makes
// and removes the directories of volumes as the node's annotation orders, and reports which
// there are (api/localpath).
//
// Owns: one directory, nothing outside it. Must not: decide which volumes there should be, or
// need more of the API than reading and annotating its own Node.
package localpath

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api/localpath"
)

// Config of a node's part.
type Config struct {
	NodeName string
	// Directory is made when it is missing; absolute.
	Directory string
	Client    kubernetes.Interface
	Clock     clock.Clock
	Logger    *slog.Logger
}

// Node carries out the orders for one node.
type Node struct {
	cfg    Config
	nodes  informers.SharedInformerFactory
	make   chan struct{}
	remove chan struct{}

	mu     sync.Mutex
	failed map[string]string // by volume
}

// New checks the configuration; it starts nothing and makes nothing.
func New(cfg Config) (*Node, error) {
	if cfg.NodeName == "" || cfg.Client == nil || cfg.Logger == nil {
		return nil, errors.New("local path: NodeName, Client and Logger are required")
	}
	if !filepath.IsAbs(cfg.Directory) {
		return nil, fmt.Errorf("local path: directory %q must be absolute", cfg.Directory)
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	own := informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", cfg.NodeName).String()
	})
	return &Node{cfg: cfg, nodes: informers.NewSharedInformerFactoryWithOptions(cfg.Client, 0, own),
		make: make(chan struct{}, 1), remove: make(chan struct{}, 1), failed: map[string]string{}}, nil
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run follows the orders until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	disk, err := openDisk(n.cfg.Directory)
	if err != nil {
		return err
	}
	defer disk.Close()
	inf := n.nodes.Core().V1().Nodes().Informer()
	changed := func() { poke(n.make); poke(n.remove) }
	reg, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed() },
		UpdateFunc: func(a, b any) {
			before, after := a.(*corev1.Node).Annotations, b.(*corev1.Node).Annotations
			for _, key := range []string{localpath.OrdersAnnotation, localpath.ReportAnnotation} {
				if before[key] != after[key] {
					changed()
				}
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch own node: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer n.nodes.Shutdown()
	defer cancel()
	n.nodes.StartWithContext(ctx)
	if !cache.WaitFor(ctx, "", reg.HasSyncedChecker()) {
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	// Removing may take long; making must not wait for it.
	wg.Go(func() {
		n.loop(ctx, n.remove, func(o localpath.Orders) error {
			return errors.Join(n.each(o.Remove, disk.Remove), n.each(o.Prune, disk.Prune))
		}, disk)
	})
	n.loop(ctx, n.make, func(o localpath.Orders) error { return n.each(o.Make, disk.Make) }, disk)
	return nil
}

// loop does its part of the orders after each change, and again after a failure.
func (n *Node) loop(ctx context.Context, kick chan struct{}, do func(localpath.Orders) error, disk *disk) {
	const least, most = time.Second, time.Minute
	wait := least
	for {
		var retry <-chan time.Time
		if err := n.pass(ctx, do, disk); err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("local-path volumes: it will be tried again", "err", err, "after", wait)
			retry = n.cfg.Clock.After(wait)
			wait = min(2*wait, most)
		} else {
			wait = least
		}
		select {
		case <-kick:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

func (n *Node) pass(ctx context.Context, do func(localpath.Orders) error, disk *disk) error {
	node, err := n.nodes.Core().V1().Nodes().Lister().Get(n.cfg.NodeName)
	if apierrors.IsNotFound(err) {
		return nil // the kubelet registers it
	}
	if err != nil {
		return fmt.Errorf("read own node: %w", err)
	}
	orders, err := localpath.ReadOrders(node.Annotations)
	if err != nil {
		n.cfg.Logger.Warn("local-path volumes: orders are ignored", "err", err)
	}
	return errors.Join(do(orders), n.report(ctx, orders, disk))
}

// each does one kind of order and remembers what failed.
func (n *Node) each(names []string, do func(string) error) error {
	var errs []error
	for _, name := range names {
		err := do(name)
		n.mu.Lock()
		if err != nil {
			n.failed[name] = err.Error()
			errs = append(errs, err)
		} else {
			delete(n.failed, name)
		}
		n.mu.Unlock()
	}
	return errors.Join(errs...)
}

// report tells what there is where the Node says something else.
func (n *Node) report(ctx context.Context, orders localpath.Orders, disk *disk) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	volumes, err := disk.List()
	if err != nil {
		return err
	}
	ordered := map[string]bool{}
	for _, names := range [][]string{orders.Make, orders.Remove, orders.Prune} {
		for _, name := range names {
			ordered[name] = true
		}
	}
	for name := range n.failed {
		if !ordered[name] {
			delete(n.failed, name)
		}
	}
	now := localpath.Report{Directory: n.cfg.Directory, Volumes: volumes, Failed: n.failed}
	node, err := n.nodes.Core().V1().Nodes().Lister().Get(n.cfg.NodeName)
	if err != nil {
		return nil // it has just gone; a new one is reported to
	}
	if said, ok, err := localpath.ReadReport(node.Annotations); ok && err == nil && said.Equal(now) {
		return nil
	}
	patch, err := localpath.Patch(node.UID, localpath.ReportAnnotation, now)
	if err != nil {
		return err
	}
	if _, err := n.cfg.Client.CoreV1().Nodes().Patch(ctx, n.cfg.NodeName, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("report local-path volumes: %w", err)
	}
	return nil
}
