package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/cluster/drain"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/containers"
)

// RemoveNodeOptions say which further node to take away.
type RemoveNodeOptions struct {
	Dir, Name string
	// Force takes pods away that nothing makes again elsewhere.
	Force bool
	// Timeout of the drain; 0: none.
	Timeout  time.Duration
	Progress io.Writer
}

// RemoveNode drains a further node of a cluster that is up, and takes away the node and all that it
// made on this host. When the drain fails or ctx ends, the node stays, cordoned.
func RemoveNode(ctx context.Context, o RemoveNodeOptions) error {
	p := Paths{o.Dir}
	c, release, err := changeNodes(p)
	if err != nil {
		return err
	}
	defer release()
	if o.Name == c.NodeName {
		return fmt.Errorf("node %s is the cluster's first; skiff down takes it away, with the cluster", o.Name)
	}
	s := c.spec(o.Name)
	if s == nil {
		return fmt.Errorf("the cluster has no further node %s on this host; skiff node ls shows those that it has (one that joined from another machine: kubectl drain and delete it, and skiff down there)", o.Name)
	}
	r := &Running{Config: c, Paths: p, steps: newSteps(o.Progress), opts: UpOptions{Progress: o.Progress}}
	if !s.Leaving {
		client, err := adminClient(p)
		if err != nil {
			return err
		}
		within := ctx
		if o.Timeout > 0 {
			var cancel context.CancelFunc
			within, cancel = context.WithTimeout(ctx, o.Timeout)
			defer cancel()
		}
		if err := drain.Run(within, drain.Config{Client: client, Node: o.Name, Force: o.Force, Progress: o.Progress}); err != nil {
			return err
		}
		r.steps.done("drained")
		s.Leaving = true
		if err := c.save(o.Dir); err != nil {
			return err
		}
	}
	// What has begun is brought to its end.
	if err := r.finishRemoval(context.WithoutCancel(ctx), o.Name); err != nil {
		return err
	}
	return c.writeShares(p)
}

// changeNodes holds the set of nodes of a cluster that is up.
func changeNodes(p Paths) (*Config, func(), error) {
	c, err := Load(p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("no cluster in %s; start one with skiff up, or name one with --name or --data-dir", p.Dir)
	}
	if err != nil {
		return nil, nil, err
	}
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("changing a cluster's nodes needs root")
	}
	if pid, err := process.Running(p.Lock(ControlPlane)); err != nil {
		return nil, nil, err
	} else if pid == 0 {
		return nil, nil, fmt.Errorf("cluster %q does not run; start it with skiff up --data-dir %s", c.Name, p.Dir)
	}
	release, err := changing(p)
	if err != nil {
		return nil, nil, err
	}
	if c, err = Load(p.Dir); err != nil {
		release()
		return nil, nil, err
	}
	return c, release, nil
}

// finishRemoval takes away a node that has been drained, its objects and its place in the configuration.
func (r *Running) finishRemoval(ctx context.Context, name string) error {
	if err := r.Config.endNode(ctx, r.Paths, name); err != nil {
		return fmt.Errorf("take node %s away: %w", name, err)
	}
	if err := os.RemoveAll(r.Paths.NodeDir(name).Dir); err != nil {
		return fmt.Errorf("take node %s away: %w", name, err)
	}
	client, err := adminClient(r.Paths)
	if err != nil {
		return err
	}
	if err := deleteNode(ctx, client, name); err != nil {
		return err
	}
	r.Config.Nodes = slices.DeleteFunc(r.Config.Nodes, func(s NodeSpec) bool { return s.Name == name })
	if err := r.Config.save(r.Paths.Dir); err != nil {
		return err
	}
	if len(r.Config.Nodes) == 0 {
		if err := r.Config.removeNodeLink(r.Paths); err != nil {
			return err
		}
		if err := os.Remove(r.Paths.NodeDir("").Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove directory of nodes: %w", err)
		}
	}
	r.steps.done("node " + name + " removed")
	return nil
}

// deleteNode deletes a Node and the pods that were its own: their kubelet will not say that they ended.
func deleteNode(ctx context.Context, client kubernetes.Interface, name string) error {
	if err := client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		return fmt.Errorf("list pods of node %s: %w", name, err)
	}
	for _, pod := range pods.Items {
		opts := metav1.NewDeleteOptions(0)
		opts.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
		if err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *opts); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete pod %s/%s of node %s: %w", pod.Namespace, pod.Name, name, err)
		}
	}
	return nil
}

// endNode ends a further node's process and containers, and takes away mounts, control groups, link
// and namespace. Its data stay. Idempotent.
func (c *Config) endNode(ctx context.Context, p Paths, name string) error {
	own := p.NodeDir(name)
	if err := process.Stop(ctx, own.Lock(Node), 20*time.Second); err != nil {
		return err
	}
	n := c.furtherNode(NodeSpec{Name: name})
	return errors.Join(purgeContainers(ctx, n, own), unmountBelow(own.Dir), c.removeNamespace(p, name), removeCgroups(n.CgroupRoot))
}

// endNodes ends all further nodes and takes their link away. Idempotent.
func (c *Config) endNodes(ctx context.Context, p Paths) error {
	if len(c.NodeSubnets) == 0 {
		return nil
	}
	var errs []error
	for _, s := range c.Nodes {
		if err := c.endNode(ctx, p, s.Name); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", s.Name, err))
		}
	}
	return errors.Join(append(errs, c.removeNodeLink(p))...)
}

// namespaceGone is the network of sandboxes whose node's namespace is taken away with all in it.
type namespaceGone struct{}

func (namespaceGone) Attach(context.Context, containers.Sandbox) (containers.Addresses, error) {
	return containers.Addresses{}, errors.New("the node is being taken away")
}
func (namespaceGone) Detach(context.Context, containers.Sandbox) error { return nil }
func (namespaceGone) Ready(context.Context) error                      { return errors.New("the node is being taken away") }
