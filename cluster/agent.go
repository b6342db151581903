package cluster

import (
	"context"
	"fmt"
	"os"

	"github.com/skiff-k8s/skiff/cluster/check"
	"github.com/skiff-k8s/skiff/cluster/process"
)

// RunAgent joins a cluster, unless that was done before, and runs this machine's node in the
// foreground until ctx ends. Containers and rules stay as they are then.
func RunAgent(ctx context.Context, o JoinOptions) error {
	p := Paths{o.Dir}
	if err := Validate("agent", o.Dir); err != nil {
		return err
	}
	pid, err := process.Running(p.Lock(Node))
	if err != nil {
		return err
	}
	if pid != 0 {
		return fmt.Errorf("the node in %s runs already (pid %d); end that one first", o.Dir, pid)
	}
	if err := check.Problems(check.Host(check.Config{DataDir: o.Dir, Ports: []uint16{defaultKubeletPort}})); err != nil {
		return err
	}
	n, err := Join(ctx, o)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.Run(), 0o755); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	fmt.Fprintf(o.Progress, "node %s of the cluster at %s runs; Ctrl-C ends it (its containers go on; skiff down --data-dir %s takes them away)\n", n.NodeName, n.Server, o.Dir)
	return RunNode(ctx, o.Dir)
}
