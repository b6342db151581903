package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

var errNoPods = errors.New("no pods: run create first")

func caseReady(ctx context.Context, b *bench, p params, r *result) {
	start := time.Now()
	if b.t0 != 0 {
		start = time.Unix(0, b.t0)
	}
	hc, err := rest.HTTPClientFor(b.cfg)
	if err != nil {
		r.fail(err)
		return
	}
	hc.Timeout = 2 * time.Second
	deadline := time.Now().Add(p.dur("timeout", time.Minute))
	for time.Now().Before(deadline) && ctx.Err() == nil {
		resp, err := hc.Get(strings.TrimSuffix(b.cfg.Host, "/") + "/readyz")
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body) // the status tells
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				r.Seconds = time.Since(start).Seconds()
				r.Ops = 1
				return
			}
		}
		time.Sleep(5 * time.Millisecond) // another process: nothing to wait on
	}
	r.fail(fmt.Errorf("not ready in time"))
}

// pod is a plain pod of ordinary size: about 3 KB as stored JSON once the server has
// defaulted it. A scheduler named none leaves it alone on either side.
func (b *bench) pod(name, scheduler string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{"apibench": b.prefix, "app": "web", "tier": "frontend"},
			Annotations: map[string]string{"example.com/owner": "apibench"},
		},
		Spec: corev1.PodSpec{
			SchedulerName: scheduler,
			Containers: []corev1.Container{{
				Name:  "main",
				Image: "registry.example/pause:3.10",
				Env:   []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{"cpu": resource.MustParse("10m"), "memory": resource.MustParse("16Mi")},
					Limits:   corev1.ResourceList{"memory": resource.MustParse("32Mi")},
				},
			}},
		},
	}
}

func caseCreate(ctx context.Context, b *bench, p params, r *result) {
	n, first := p.int("n", 1000), b.created
	scheduler := p.str("sched", "none")
	run(r, n, p.int("c", 16), func(w, i int) (int64, error) {
		_, err := b.client(w).CoreV1().Pods(b.ns).Create(ctx, b.pod(b.podName(first+i), scheduler), metav1.CreateOptions{})
		return 0, err
	})
	b.created += n
}

func caseGet(ctx context.Context, b *bench, p params, r *result) {
	if b.created == 0 {
		r.fail(errNoPods)
		return
	}
	run(r, p.int("n", 5000), p.int("c", 16), func(w, i int) (int64, error) {
		raw, err := b.client(w).CoreV1().RESTClient().Get().Namespace(b.ns).Resource("pods").Name(b.podName(i % b.created)).Do(ctx).Raw()
		return int64(len(raw)), err
	})
}

func caseList(ctx context.Context, b *bench, p params, r *result) {
	list := func(w int, query map[string]string) (int64, error) {
		req := b.client(w).CoreV1().RESTClient().Get().Namespace(b.ns).Resource("pods")
		for k, v := range query {
			req = req.Param(k, v)
		}
		raw, err := req.Do(ctx).Raw()
		return int64(len(raw)), err
	}
	// The typed client decodes each page for its continue token.
	pages := func(w int) (int64, error) {
		opts, objects := metav1.ListOptions{Limit: 500}, 0
		for {
			pods, err := b.client(w).CoreV1().Pods(b.ns).List(ctx, opts)
			if err != nil {
				return 0, err
			}
			objects += len(pods.Items)
			if opts.Continue = pods.Continue; opts.Continue == "" {
				if objects != b.created {
					return 0, fmt.Errorf("%d objects in all pages, %d were created", objects, b.created)
				}
				return 0, nil
			}
		}
	}
	mode := p.str("mode", "full")
	run(r, p.int("n", 10), p.int("c", 1), func(w, _ int) (int64, error) {
		switch mode {
		case "full":
			return list(w, nil)
		case "rv0":
			return list(w, map[string]string{"resourceVersion": "0"})
		case "page":
			return pages(w)
		}
		return 0, fmt.Errorf("no list mode %q", mode)
	})
}

func casePatch(ctx context.Context, b *bench, p params, r *result) {
	if b.created == 0 {
		r.fail(errNoPods)
		return
	}
	run(r, p.int("n", 2000), p.int("c", 16), func(w, i int) (int64, error) {
		body := fmt.Sprintf(`{"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True","message":"%d"},{"type":"ContainersReady","status":"True"}]}}`, time.Now().UnixNano())
		_, err := b.client(w).CoreV1().Pods(b.ns).Patch(ctx, b.podName(i%b.created), types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{}, "status")
		return 0, err
	})
}

func caseDelCol(ctx context.Context, b *bench, p params, r *result) {
	what := p.str("what", "pods")
	zero := int64(0)
	count := func() (int, error) {
		raw, err := b.client(0).CoreV1().RESTClient().Get().Namespace(b.ns).Resource(what).Param("limit", "1").
			SetHeader("Accept", "application/json").Do(ctx).Raw()
		if err != nil {
			return 0, err
		}
		var l metav1.PartialObjectMetadataList
		if err := json.Unmarshal(raw, &l); err != nil {
			return 0, err
		}
		n := len(l.Items)
		if l.RemainingItemCount != nil {
			n += int(*l.RemainingItemCount)
		}
		return n, nil
	}
	before, err := count()
	if err != nil {
		r.fail(err)
		return
	}
	start := time.Now()
	if err := b.client(0).CoreV1().RESTClient().Delete().Namespace(b.ns).Resource(what).
		Timeout(10 * time.Minute).Body(&metav1.DeleteOptions{GracePeriodSeconds: &zero}).Do(ctx).Error(); err != nil {
		r.extra("call_failed", 1) // the time of one request is bounded: the collection is deleted by further ones
	}
	r.extra("call_s", time.Since(start).Seconds())
	deadline := start.Add(3 * time.Minute)
	for {
		n, err := count()
		if err == nil && n == 0 {
			break
		}
		if time.Now().After(deadline) {
			r.fail(fmt.Errorf("%d %s left, %v", n, what, err))
			break
		}
		time.Sleep(100 * time.Millisecond) // asked rarely, so that asking costs the server little
	}
	r.Seconds = time.Since(start).Seconds()
	r.Ops = before
	if what == "pods" {
		b.created = 0
	}
}
