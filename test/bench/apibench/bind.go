package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// waitBound watches the pods that have a node until n more than those of had are seen, and returns when
// each was first seen, in order, and how often the watch had to be opened again (a server may
// end the watch of a slow reader at any time).
func (b *bench) waitBound(ctx context.Context, selector string, had map[types.UID]bool, n int, timeout time.Duration) ([]time.Time, int, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	pods := b.client(0).CoreV1().Pods(b.ns)
	seen := map[types.UID]time.Time{}
	see := func(uid types.UID) {
		if _, known := seen[uid]; !known && !had[uid] {
			seen[uid] = time.Now()
		}
	}
	opens := 0
	for ; len(seen) < n && ctx.Err() == nil; opens++ {
		opts := metav1.ListOptions{LabelSelector: selector, FieldSelector: "spec.nodeName!="}
		list, err := pods.List(ctx, opts)
		if err != nil {
			return nil, opens, err
		}
		for i := range list.Items {
			see(list.Items[i].UID)
		}
		opts.ResourceVersion = list.ResourceVersion
		w, err := pods.Watch(ctx, opts)
		if err != nil {
			return nil, opens, err
		}
		for len(seen) < n {
			ev, ok := <-w.ResultChan()
			if !ok {
				break
			}
			if pod, ok := ev.Object.(*corev1.Pod); ok {
				see(pod.UID)
			}
		}
		w.Stop()
	}
	times := make([]time.Time, 0, len(seen))
	for _, t := range seen {
		times = append(times, t)
	}
	slices.SortFunc(times, time.Time.Compare)
	if len(times) < n {
		return times, opens - 1, fmt.Errorf("%d of %d bound in time", len(times), n)
	}
	return times, max(0, opens-1), nil
}

// caseBind creates pods and waits until the scheduler has bound all of them.
func caseBind(ctx context.Context, b *bench, p params, r *result) {
	n := p.int("n", 5000)
	list, err := b.client(0).CoreV1().Pods(b.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		r.fail(err)
		return
	}
	had := map[types.UID]bool{}
	for i := range list.Items {
		had[list.Items[i].UID] = true
	}
	var made result
	var creating sync.WaitGroup
	start := time.Now()
	creating.Go(func() {
		caseCreate(ctx, b, params{"n": fmt.Sprint(n), "c": fmt.Sprint(p.int("c", 16)), "sched": ""}, &made)
	})
	times, reopened, err := b.waitBound(ctx, "", had, n, p.dur("timeout", 5*time.Minute))
	creating.Wait()
	if err != nil {
		r.fail(err)
	}
	if made.Errors > 0 {
		r.fail(fmt.Errorf("create pods: %s", made.FirstError))
	}
	if len(times) == 0 {
		return
	}
	r.Ops = len(times)
	r.Seconds = times[len(times)-1].Sub(start).Seconds()
	r.extra("watch_reopened", float64(reopened))
	r.extra("create_s", made.Seconds)
	// Without the first and last tenth: the steady rate.
	if mid := times[len(times)/10 : len(times)*9/10]; len(mid) > 1 {
		r.extra("middle_80pct_per_s", float64(len(mid)-1)/mid[len(mid)-1].Sub(mid[0]).Seconds())
	}
}

func caseDeploy(ctx context.Context, b *bench, p params, r *result) {
	replicas := int32(p.int("replicas", 3))
	labels := map[string]string{"deploy": b.prefix}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{GenerateName: b.prefix + "-deploy-"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: b.pod("", "").Spec},
		},
	}
	start := time.Now()
	d, err := b.client(0).AppsV1().Deployments(b.ns).Create(ctx, d, metav1.CreateOptions{})
	if err != nil {
		r.fail(err)
		return
	}
	times, _, err := b.waitBound(ctx, "deploy="+b.prefix, nil, int(replicas), time.Minute)
	if err != nil {
		r.fail(err)
		return
	}
	r.Ops = len(times)
	r.Seconds = times[len(times)-1].Sub(start).Seconds()
	r.extra("first_bound_s", times[0].Sub(start).Seconds())
	zero, bg := int64(0), metav1.DeletePropagationBackground
	if err := b.client(0).AppsV1().Deployments(b.ns).Delete(ctx, d.Name, metav1.DeleteOptions{PropagationPolicy: &bg, GracePeriodSeconds: &zero}); err != nil {
		r.fail(err)
	}
}
