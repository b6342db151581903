package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/test/bench/profile"
	"github.com/skiff-k8s/skiff/test/bench/record"
)

// profiler takes a CPU profile of a process over some seconds.
type profiler func(ctx context.Context, seconds int) ([]byte, error)

// profiled does the work of a case while a process takes a profile of itself, and keeps what it cost.
func (r *stageRun) profiled(name string, seconds int, take profiler, work func() error) error {
	if !r.wanted[name] {
		return work()
	}
	ctx, cancel := context.WithTimeout(r.ctx, time.Duration(seconds)*time.Second+time.Minute)
	defer cancel()
	var raw []byte
	taken := make(chan error, 1)
	go func() {
		var err error
		raw, err = take(ctx, seconds)
		taken <- err
	}()
	worked := work()
	if worked != nil {
		cancel()
	}
	if err := errors.Join(worked, <-taken); err != nil {
		return fmt.Errorf("profile %s: %w", name, err)
	}
	path := filepath.Join(r.work, name+".pprof")
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		return err
	}
	costs, err := profile.Top(path, 5)
	if err != nil {
		return err
	}
	r.add(record.Line{Result: record.Result{Case: name}, Costs: costs})
	return nil
}

// proxyProfile asks a proxy, from the moment that it serves its metrics.
func proxyProfile(ctx context.Context, seconds int) ([]byte, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:10249/debug/pprof/profile?seconds="+strconv.Itoa(seconds), nil)
		if err != nil {
			return nil, err
		}
		resp, err := http.DefaultClient.Do(req)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return profileOf(resp, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// profile asks the kubelet itself, as the cluster's administrator: its certificate is its own
// affair here.
func (n *node) profile(ctx context.Context, seconds int) ([]byte, error) {
	nodes, err := n.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	status := nodes.Items[0].Status
	i := slices.IndexFunc(status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP })
	if i < 0 {
		return nil, fmt.Errorf("node %s has no InternalIP", nodes.Items[0].Name)
	}
	cfg := rest.CopyConfig(n.config)
	cfg.Insecure, cfg.CAFile, cfg.CAData, cfg.Timeout = true, "", nil, 0
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client of the kubelet: %w", err)
	}
	defer client.CloseIdleConnections()
	host := net.JoinHostPort(status.Addresses[i].Address, strconv.Itoa(int(status.DaemonEndpoints.KubeletEndpoint.Port)))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/debug/pprof/profile?seconds="+strconv.Itoa(seconds), nil)
	if err != nil {
		return nil, err
	}
	return profileOf(client.Do(req))
}

// profileOf reads an answer.
func profileOf(resp *http.Response, err error) ([]byte, error) {
	if err != nil {
		return nil, fmt.Errorf("take CPU profile: %w", err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("take CPU profile: %s: %s", resp.Status, raw)
	}
	return raw, err
}

// profiles are taken of what starts pods.
func (n *node) profiles() error {
	err := n.r.profiled("pod-start", 4, n.profile, func() error {
		for i := range 20 {
			if _, err := n.start(fmt.Sprintf("profiled-%d", i), 1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return n.r.profiled("pods-50", 4, n.profile, func() error {
		_, err := n.start("profiled-many", 50)
		return err
	})
}

// profiles are taken of a proxy that loads and changes.
func (p *proxied) profiles() error {
	err := p.r.profiled("services-load", 10, proxyProfile, func() error {
		_, err := p.start("--profiling")
		return err
	})
	if err != nil || !p.r.wanted["services-change"] {
		return err
	}
	return p.r.profiled("services-change", 10, proxyProfile, func() error {
		_, err := p.change()
		return err
	})
}
