package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
)

func caseUpdate(ctx context.Context, b *bench, p params, r *result) {
	n := p.int("n", 2000)
	objs := max(1, n/4)
	cm := func(i int) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: b.prefix + "-put-" + strconv.Itoa(i%objs)},
			Data:       map[string]string{"k": strconv.FormatInt(time.Now().UnixNano(), 10), "text": strings.Repeat("x", 500)},
		}
	}
	made := &result{}
	run(made, objs, 8, func(w, i int) (int64, error) {
		_, err := b.client(w).CoreV1().ConfigMaps(b.ns).Create(ctx, cm(i), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			err = nil
		}
		return 0, err
	})
	if made.Errors > 0 {
		r.fail(fmt.Errorf("create what is to be updated: %s", made.FirstError))
		return
	}
	run(r, n, p.int("c", 16), func(w, i int) (int64, error) {
		_, err := b.client(w).CoreV1().ConfigMaps(b.ns).Update(ctx, cm(i), metav1.UpdateOptions{})
		return 0, err
	})
	r.Ops += made.Ops // CPU is counted over both
	r.Seconds += made.Seconds
}

func caseApply(ctx context.Context, b *bench, p params, r *result) {
	value := "one"
	if p.str("mode", "create") == "change" {
		value = strconv.FormatInt(time.Now().UnixNano(), 10)
	}
	run(r, p.int("n", 500), p.int("c", 1), func(w, i int) (int64, error) {
		cm := applycorev1.ConfigMap(b.prefix+"-ssa-"+strconv.Itoa(i), b.ns).
			WithLabels(map[string]string{"apibench": b.prefix}).
			WithData(map[string]string{"a": value, "b": "two", "text": strings.Repeat("x", 500)})
		_, err := b.client(w).CoreV1().ConfigMaps(b.ns).Apply(ctx, cm, metav1.ApplyOptions{FieldManager: "apibench", Force: true})
		return 0, err
	})
}
