package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// onEtcd is a cluster of skiff's on an etcd of n members; of more than one, one is killed once
// the cluster is up and never comes back.
func onEtcd(n int) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		var clients, peers []string
		for i := range n {
			clients = append(clients, fmt.Sprintf("http://127.0.0.1:%d", 2379+100*i))
			peers = append(peers, fmt.Sprintf("http://127.0.0.1:%d", 2380+100*i))
		}
		var initial []string
		for i, p := range peers {
			initial = append(initial, fmt.Sprintf("m%d=%s", i, p))
		}
		var members []*process
		for i := range n {
			name := fmt.Sprintf("m%d", i)
			p, err := l.start("etcd-"+name, l.twin("etcd"), "--name="+name, "--data-dir="+filepath.Join(l.work, "etcd-"+name), "--log-level=warn",
				"--listen-client-urls="+clients[i], "--advertise-client-urls="+clients[i],
				"--listen-peer-urls="+peers[i], "--initial-advertise-peer-urls="+peers[i], "--initial-cluster="+strings.Join(initial, ","))
			if err != nil {
				return err
			}
			members = append(members, p)
		}
		if err := l.onStore(ctx, clients); err != nil {
			return err
		}
		if n == 1 {
			return nil
		}
		members[0].stopping = true
		if err := members[0].cmd.Process.Signal(syscall.SIGKILL); err != nil {
			return fmt.Errorf("kill a member: %w", err)
		}
		<-members[0].done
		// It may have been the leader: what is written before there is another one has an outcome
		// that nobody knows.
		return wait(ctx, time.Minute, "writes after a member was killed", func() error {
			_, err := l.kube(ctx, "", "annotate", "namespace", "default", "swap=killed", "--overwrite")
			return err
		})
	}
}

// onKine is a cluster of skiff's on kine with its SQLite driver.
func onKine(ctx context.Context, l *lab) error {
	const endpoint = "127.0.0.1:2379"
	db := filepath.Join(l.work, "kine.db")
	_, err := l.start("kine", l.twin("kine"), "--listen-address=tcp://"+endpoint, "--metrics-bind-address=0",
		"--endpoint=sqlite://"+db+"?_journal_mode=WAL&_busy_timeout=30000&_synchronous=NORMAL&_txlock=immediate&_stmt_cache_size=20&cache=shared")
	if err != nil {
		return err
	}
	return l.onStore(ctx, []string{"http://" + endpoint})
}

func (l *lab) onStore(ctx context.Context, endpoints []string) error {
	l.flags = append(l.flags, "--etcd-servers="+strings.Join(endpoints, ","))
	if err := l.bring(ctx); err != nil {
		return err
	}
	if err := l.ready(ctx); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(l.dir, "etcd")); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the cluster keeps state of its own as well: %w", err)
	}
	return l.loadImages(ctx)
}

// kinds runs test/upstream/kinds and sums up what it compared. Each line stays in
// results/kinds.jsonl.
func kinds(ctx context.Context, l *lab) ([]stepResult, error) {
	out := filepath.Join(l.results, "kinds.jsonl")
	cmd := exec.CommandContext(ctx, filepath.Join(l.cache, "kinds"), "-etcd", l.twin("etcd"), "-upstream", l.twin("kube-apiserver"), "-skiff", l.skiff,
		"-deviations", filepath.Join(filepath.Dir(l.lists), "kinds", "deviations.txt"), "-dir", l.work, "-out", out)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	runErr := cmd.Run()
	f, err := os.Open(out)
	if err != nil {
		return nil, errors.Join(runErr, err)
	}
	defer f.Close()
	at := map[string]int{}
	var steps []stepResult
	equal := map[string]int{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r struct {
			Check, Writer, Reader, Kind string
			OK                          bool
			Diffs                       []string
		}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s: %w", out, err)
		}
		name := fmt.Sprintf("%s, %s wrote, %s reads", r.Check, r.Writer, r.Reader)
		if _, ok := at[name]; !ok {
			at[name] = len(steps)
			steps = append(steps, stepResult{Name: name})
		}
		if r.OK {
			equal[name]++
		} else if s := &steps[at[name]]; s.Error == "" {
			s.Error = r.Kind + ": " + strings.Join(r.Diffs, "; ")
		}
	}
	for i := range steps {
		steps[i].Name += fmt.Sprintf(": %d equal", equal[steps[i].Name])
	}
	return steps, errors.Join(runErr, lines.Err())
}
