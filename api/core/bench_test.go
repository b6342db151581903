package core

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

const usualPod = `
metadata: {name: web-5d8c7b4b9f-x2x7z, namespace: default, labels: {app: web, pod-template-hash: 5d8c7b4b9f}}
spec:
  containers:
  - name: web
    image: nginx:1.29
    ports: [{containerPort: 80, name: http}]
    resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {memory: 128Mi}}
    readinessProbe: {httpGet: {path: /, port: http}}
    volumeMounts: [{name: kube-api-access-x, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}, {name: config, mountPath: /etc/web}]
    env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  serviceAccountName: default
  volumes:
  - {name: config, configMap: {name: web}}
  - {name: kube-api-access-x, projected: {sources: [{serviceAccountToken: {path: token, expirationSeconds: 3607}}, {configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}}, {downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}}]}}
  tolerations: [{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}]
`

func BenchmarkPod(b *testing.B) {
	t := &testing.T{}
	r := resourceNamed(t, "pods")
	pod := parse[*v1.Pod](t, r, usualPod)
	ctx := b.Context()
	running := pod.DeepCopy()
	running.Status = v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}}}
	status := subresource(t, r, "status")
	for name, f := range map[string]func(){
		"default":  func() { r.Default(pod) },
		"prepare":  func() { r.PrepareCreate(ctx, pod) },
		"validate": func() { r.Validate(ctx, pod) },
		"update":   func() { r.ValidateUpdate(ctx, pod, pod) },
		"status":   func() { status.PrepareUpdate(ctx, running, pod); status.ValidateUpdate(ctx, running, pod) },
		"warnings": func() { r.Warnings(ctx, pod, nil) },
		"fields":   func() { r.Fields(pod) },
		"row":      func() { r.Row(pod, time.Time{}) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}
