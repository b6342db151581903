package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/isolated"
)

// clusterName is not that of a cluster that a user would start.
const clusterName = "conformance"

// testCluster is a fresh cluster and the registry that it pulls from.
type testCluster struct {
	skiff, dir string
	registry   *exec.Cmd
}

func (c *testCluster) kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// startCluster returns when all nodes are Ready and cluster DNS answers. The caller calls
// down whether or not there is an error.
func startCluster(ctx context.Context, o tools, dir string, nodes int, registries []string, log io.Writer) (*testCluster, error) {
	c := &testCluster{skiff: o.skiff, dir: dir}
	var err error
	if c.registry, err = startRegistry(o, log); err != nil {
		return c, err
	}
	args := []string{"up", "--detach", "--name", clusterName, "--data-dir", dir, "--nodes", fmt.Sprint(nodes)}
	for _, r := range registries {
		args = append(args, "--plain-http-registry", r)
	}
	var out strings.Builder
	cmd := exec.CommandContext(ctx, c.skiff, args...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, log), io.MultiWriter(&out, log)
	if err := cmd.Run(); err != nil {
		return c, fmt.Errorf("the cluster did not come up: skiff %s: %w\n%s", strings.Join(args, " "), err, lastLines(out.String(), 5))
	}
	return c, nil
}

// startRegistry returns when the registry listens.
func startRegistry(o tools, log io.Writer) (*exec.Cmd, error) {
	cmd := exec.Command(o.registry, "-layout", o.images, "-listen", isolated.Address+":80")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	var errOut strings.Builder
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the registry of test images: %w", err)
	}
	// It names its images once it listens.
	lines := bufio.NewReader(out)
	if _, err := lines.ReadString('\n'); err != nil {
		_ = cmd.Wait()
		return nil, fmt.Errorf("the registry of test images ended: %s", strings.TrimSpace(errOut.String()))
	}
	go func() { _, _ = io.Copy(log, lines) }()
	return cmd, nil
}

// down takes the cluster away, its data too; its logs are kept in out first.
func (c *testCluster) down(out string) error {
	// What was interrupted is taken away as well.
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if c.registry != nil {
		_ = c.registry.Process.Kill()
		_ = c.registry.Wait()
	}
	if err := os.CopyFS(filepath.Join(out, "cluster"), os.DirFS(filepath.Join(c.dir, "log"))); err != nil && !os.IsNotExist(err) {
		fmt.Fprintln(os.Stderr, "keep the cluster's logs:", err)
	}
	if text, err := exec.CommandContext(ctx, c.skiff, "down", "--purge", "--name", clusterName, "--data-dir", c.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("take the cluster away: %w\n%s", err, lastLines(string(text), 5))
	}
	return nil
}
