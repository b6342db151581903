package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

const (
	flowNamespace = "swap-flow"
	firstImage    = "registry.k8s.io/e2e-test-images/agnhost:2.55"
	secondImage   = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"
	clusterDNS    = "10.96.0.10:53"
)

const flowManifest = `
apiVersion: v1
kind: ConfigMap
metadata: {name: words, labels: {app: flow}}
data: {greeting: "ahoy"}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: flow, labels: {app: flow}}
spec:
  replicas: 2
  selector: {matchLabels: {app: flow}}
  template:
    metadata: {labels: {app: flow}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: ` + firstImage + `
        args: [netexec, --http-port=8080]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: words, mountPath: /words}]
      volumes: [{name: words, configMap: {name: words}}]
---
apiVersion: v1
kind: Service
metadata: {name: flow, labels: {app: flow}}
spec:
  selector: {app: flow}
  ports: [{port: 80, targetPort: 8080}]
`

// spread puts each generation's pods on all nodes.
const spread = `
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: flow}}, matchLabelKeys: [pod-template-hash]}`

// manifest is what the flow applies: with several nodes, pods run on all of them.
func (l *lab) manifest() string {
	if len(l.nodes) < 2 {
		return flowManifest
	}
	const spec = "terminationGracePeriodSeconds: 1"
	return strings.Replace(flowManifest, spec, spec+spread, 1)
}

// stepResult is what came of one step of the flow.
type stepResult struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

type step struct {
	name string
	do   func(context.Context) error
}

// flow takes a Deployment through its life. It ends at the first step that fails: what
// follows would say nothing.
func (l *lab) flow(ctx context.Context) ([]stepResult, error) {
	in := func(args ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := l.kube(ctx, "", append([]string{"-n", flowNamespace}, args...)...)
			return err
		}
	}
	rollout := in("rollout", "status", "deployment/flow", "--timeout=90s")
	steps := []step{
		{"create a namespace; its ServiceAccount appears", func(ctx context.Context) error {
			if _, err := l.kube(ctx, "", "create", "namespace", flowNamespace); err != nil {
				return err
			}
			return wait(ctx, 30*time.Second, "the ServiceAccount", func() error { return in("get", "serviceaccount", "default")(ctx) })
		}},
		{"apply Deployment, ConfigMap, Service", func(ctx context.Context) error {
			_, err := l.kube(ctx, l.manifest(), "-n", flowNamespace, "apply", "-f", "-")
			return err
		}},
		{"rollout", rollout},
		{"the Service answers by cluster IP", l.answersByIP},
		{"the Service answers by name", l.answersByName},
		{"pods read the ConfigMap; exec works", func(ctx context.Context) error {
			text, err := l.kube(ctx, "", "-n", flowNamespace, "exec", "deploy/flow", "--", "cat", "/words/greeting")
			if err == nil && text != "ahoy" {
				err = fmt.Errorf("read %q, want ahoy", text)
			}
			return err
		}},
		{"logs", in("logs", "deploy/flow")},
	}
	if len(l.nodes) > 1 {
		steps = append(steps, step{"pods of every node: exec, logs, and the Service by name reaches all of them", l.fromEveryNode})
	}
	steps = append(steps, []step{
		{"scale to 4", all(in("scale", "deployment/flow", "--replicas=4"), rollout, l.pods(4, firstImage))},
		{"scale to 2", all(in("scale", "deployment/flow", "--replicas=2"), rollout, l.pods(2, firstImage))},
		{"set image", all(in("set", "image", "deployment/flow", "web="+secondImage), rollout, l.pods(2, secondImage), l.answersByIP)},
		{"undo", all(in("rollout", "undo", "deployment/flow"), rollout, l.pods(2, firstImage), l.answersByIP)},
		{"delete leaves nothing", func(ctx context.Context) error {
			if _, err := l.kube(ctx, l.manifest(), "-n", flowNamespace, "delete", "--wait=false", "-f", "-"); err != nil {
				return err
			}
			return wait(ctx, 90*time.Second, "what the Deployment and the Service had made to go", func() error {
				left, err := l.kube(ctx, "", "-n", flowNamespace, "get", "deployments,replicasets,pods,services,endpointslices,endpoints", "-l", "app=flow", "-o", "name")
				if err == nil && left != "" {
					err = fmt.Errorf("left: %s", strings.Join(strings.Fields(left), " "))
				}
				return err
			})
		}},
		{"delete the namespace", func(ctx context.Context) error {
			_, err := l.kube(ctx, "", "delete", "namespace", flowNamespace, "--timeout=90s")
			return err
		}},
	}...)
	var out []stepResult
	for _, s := range steps {
		start := time.Now()
		err := s.do(ctx)
		r := stepResult{Name: s.name, Seconds: time.Since(start).Seconds()}
		if err != nil {
			r.Error = err.Error()
		}
		out = append(out, r)
		if err != nil {
			fmt.Printf("  FAILED  %s: %v\n", s.name, err)
			return out, fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Printf("  passed  %s (%.1f s)\n", s.name, r.Seconds)
	}
	return out, nil
}

func all(fs ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, f := range fs {
			if err := f(ctx); err != nil {
				return err
			}
		}
		return nil
	}
}

// fromEveryNode finds a pod on each node, and the other nodes' pods from each of them. Every
// request asks cluster DNS, and none may fail.
func (l *lab) fromEveryNode(ctx context.Context) error {
	text, err := l.kube(ctx, "", "-n", flowNamespace, "get", "pods", "-l", "app=flow", "-o", `jsonpath={range .items[*]}{.spec.nodeName} {.metadata.name}{"\n"}{end}`)
	if err != nil {
		return err
	}
	pods := map[string]string{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		pods[f[0]] = f[1]
	}
	for _, node := range l.nodes {
		pod, ok := pods[node]
		if !ok {
			return fmt.Errorf("no pod runs on node %s: pods by node are %v", node, pods)
		}
		if text, err := l.kube(ctx, "", "-n", flowNamespace, "logs", pod); err != nil {
			return fmt.Errorf("from node %s: %w", node, err)
		} else if text == "" {
			return fmt.Errorf("%s on node %s has no logs", pod, node)
		}
		seen := map[string]bool{}
		for range requests {
			name, err := l.kube(ctx, "", "-n", flowNamespace, "exec", pod, "--", "curl", "-sSf", "--max-time", "3", "http://flow/hostname")
			if err != nil {
				return fmt.Errorf("from node %s: %w", node, err)
			}
			seen[name] = true
		}
		for other, want := range pods {
			if !seen[want] {
				return fmt.Errorf("from node %s: %d requests to the Service never came to %s on %s", node, requests, want, other)
			}
		}
	}
	return nil
}

// requests are so many that with two endpoints one of them is never asked once in half a billion runs.
const requests = 30

// pods waits until exactly n pods of the image are left, all ready.
func (l *lab) pods(n int, image string) func(context.Context) error {
	want := strings.TrimSpace(strings.Repeat(image+" true\n", n))
	return func(ctx context.Context) error {
		return wait(ctx, time.Minute, fmt.Sprintf("%d pods", n), func() error {
			got, err := l.kube(ctx, "", "-n", flowNamespace, "get", "pods", "-l", "app=flow",
				"-o", `jsonpath={range .items[*]}{.spec.containers[0].image} {.status.containerStatuses[0].ready}{"\n"}{end}`)
			if err == nil && got != want {
				err = fmt.Errorf("have %q, want %q", got, want)
			}
			return err
		})
	}
}

func (l *lab) answersByIP(ctx context.Context) error {
	ip, err := l.kube(ctx, "", "-n", flowNamespace, "get", "service", "flow", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	return wait(ctx, 30*time.Second, "http://"+ip, func() error { return answers(ctx, ip) })
}

func (l *lab) answersByName(ctx context.Context) error {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: time.Second}).DialContext(ctx, network, clusterDNS)
	}}
	return wait(ctx, 30*time.Second, "the Service's name", func() error {
		addrs, err := r.LookupHost(ctx, "flow."+flowNamespace+".svc.cluster.local.")
		if err != nil {
			return err
		}
		return answers(ctx, addrs[0])
	})
}

func answers(ctx context.Context, ip string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(ip, "80")+"/hostname", nil)
	if err != nil {
		return err
	}
	t := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && (resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(text), "flow-")) {
		err = fmt.Errorf("answered %s: %q, want a pod's name", resp.Status, text)
	}
	return err
}
