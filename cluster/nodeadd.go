package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/cluster/process"
)

// AddNodeOptions say which further node a cluster gets.
type AddNodeOptions struct {
	Dir string
	// Node; an empty name is chosen.
	Node NodeSpec
	// Executable is the skiff binary that the node's process runs.
	Executable string
	Progress   io.Writer
	// Timeout until it is Ready; 0: two minutes.
	Timeout time.Duration
}

// AddNode gives a cluster that is up a further node on this host and returns its name once it is
// Ready. A node that does not become so stays: the next try, or skiff up, goes on with it.
func AddNode(ctx context.Context, o AddNodeOptions) (string, error) {
	p := Paths{o.Dir}
	c, release, err := changeNodes(p)
	if err != nil {
		return "", err
	}
	defer release()
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Minute
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	taken, err := hostClaims(o.Dir)
	if err != nil {
		return "", err
	}
	if o.Node.Name == "" {
		o.Node.Name = c.freeNodeName()
	}
	c.Nodes = append(c.Nodes, o.Node)
	if err := c.settleNodes(p, 0, taken); err != nil {
		return "", err
	}
	client, err := adminClient(p)
	if err != nil {
		return "", err
	}
	// Another machine may have joined under this name.
	if _, err := client.CoreV1().Nodes().Get(ctx, o.Node.Name, metav1.GetOptions{}); err == nil {
		return "", fmt.Errorf("node name %s: taken by a node that the cluster has; choose another, or take that one away first: kubectl delete node %s", o.Node.Name, o.Node.Name)
	} else if !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("look for node %s: %w", o.Node.Name, err)
	}
	r := &Running{Config: c, Paths: p, steps: newSteps(o.Progress), opts: UpOptions{Executable: o.Executable, Progress: o.Progress}}
	if err := c.save(o.Dir); err != nil {
		return "", err
	}
	if err := c.writeShares(p); err != nil {
		return "", err
	}
	agent := r.agent(*c.spec(o.Node.Name))
	child, err := r.ensure(agent)
	if err != nil {
		return "", err
	}
	ctx, stop := r.tend(ctx, agent, child)
	defer stop()
	if err := waitOneReady(ctx, client, o.Node.Name); err != nil {
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.DeadlineExceeded) {
			err = cause
		}
		return "", fmt.Errorf("node %s: %w (log: %s)", o.Node.Name, err, agent.log)
	}
	r.steps.done("node " + o.Node.Name + " ready")
	return o.Node.Name, labelNode(ctx, client, o.Node.Name, o.Node.Labels)
}

// NodeStatus is how a node of a cluster fares.
type NodeStatus struct {
	Name      string
	Addresses []string
	// Place is where it runs: this host, a namespace of it, another machine.
	Place string
	// PID of its process on this host; 0: none runs.
	PID int
	// Ready as the API server has it; "-" where it does not know the node or is not reached.
	Ready string
}

// Nodes are those of a cluster, whether it runs or not.
func Nodes(ctx context.Context, dir string) ([]NodeStatus, error) {
	c, err := Load(dir)
	if err != nil {
		return nil, fmt.Errorf("no cluster in %s; start one with skiff up, or name one with --name or --data-dir", dir)
	}
	p := Paths{dir}
	first := NodeStatus{Name: c.NodeName, Addresses: addressStrings(c.node().NodeIPs), Place: "host", Ready: "-"}
	if first.PID, err = process.Running(p.Lock(Node)); err != nil {
		return nil, err
	}
	out := []NodeStatus{first}
	for _, s := range c.Nodes {
		st := NodeStatus{Name: s.Name, Addresses: addressStrings(s.Addresses), Place: "namespace", Ready: "-"}
		if s.Leaving {
			st.Place = "leaving"
		}
		if st.PID, err = process.Running(p.NodeDir(s.Name).Lock(Node)); err != nil {
			return nil, err
		}
		out = append(out, st)
	}
	if pid, err := process.Running(p.Lock(ControlPlane)); err != nil || pid == 0 {
		return out, err
	}
	client, err := adminClient(p)
	if err != nil {
		return nil, err
	}
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range list.Items {
		ready, _ := nodeReady(&n)
		word := map[bool]string{true: "Ready", false: "NotReady"}[ready]
		if n.Spec.Unschedulable {
			word += ",SchedulingDisabled"
		}
		known := false
		for i := range out {
			if out[i].Name == n.Name {
				out[i].Ready, known = word, true
			}
		}
		if !known {
			st := NodeStatus{Name: n.Name, Place: "joined", Ready: word}
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					st.Addresses = append(st.Addresses, a.Address)
				}
			}
			out = append(out, st)
		}
	}
	return out, nil
}
