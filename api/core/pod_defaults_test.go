package core

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
)

func TestPodDefaults(t *testing.T) {
	r := resourceNamed(t, "pods")
	for name, c := range map[string]struct{ in, want string }{
		"everything empty": {`
spec:
  containers: [{name: c, image: nginx}]`, `
spec:
  restartPolicy: Always
  dnsPolicy: ClusterFirst
  schedulerName: default-scheduler
  securityContext: {}
  terminationGracePeriodSeconds: 30
  enableServiceLinks: true
  containers:
  - {name: c, image: nginx, imagePullPolicy: Always, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}`},
		"pull policy by tag": {`
spec:
  containers:
  - {name: tag, image: "r.io:5000/a/b:v1"}
  - {name: latest, image: "r.io:5000/a/b:latest"}
  - {name: port, image: "r.io:5000/a/b"}
  - {name: digest, image: "a@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}
  - {name: bad, image: " x"}`, `
spec:
  restartPolicy: Always
  dnsPolicy: ClusterFirst
  schedulerName: default-scheduler
  securityContext: {}
  terminationGracePeriodSeconds: 30
  enableServiceLinks: true
  containers:
  - {name: tag, image: "r.io:5000/a/b:v1", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}
  - {name: latest, image: "r.io:5000/a/b:latest", imagePullPolicy: Always, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}
  - {name: port, image: "r.io:5000/a/b", imagePullPolicy: Always, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}
  - {name: digest, image: "a@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}
  - {name: bad, image: " x", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}`},
		"what containers and volumes hold": {`
spec:
  hostNetwork: true
  serviceAccount: old
  terminationGracePeriodSeconds: -3
  containers:
  - name: c
    image: a:1
    ports: [{containerPort: 80}, {containerPort: 53, hostPort: 53, protocol: UDP}]
    resources: {limits: {cpu: 100.1m, memory: 1Gi}, requests: {cpu: 50m}}
    env: [{name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: F, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: K}}}]
    livenessProbe: {httpGet: {port: 80}}
    readinessProbe: {grpc: {port: 80}, periodSeconds: 3}
    lifecycle: {preStop: {httpGet: {port: 80}}}
  volumes:
  - {name: none}
  - {name: cm, configMap: {name: x}}
  - {name: s, secret: {secretName: x}}
  - {name: h, hostPath: {path: /x}}
  - {name: i, image: {reference: a}}
  - {name: e, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce]}}}}
  - {name: p, projected: {sources: [{serviceAccountToken: {path: t}}, {downwardAPI: {items: [{path: l, fieldRef: {fieldPath: metadata.labels}}]}}]}}`, `
spec:
  restartPolicy: Always
  dnsPolicy: ClusterFirst
  schedulerName: default-scheduler
  securityContext: {}
  hostNetwork: true
  serviceAccount: old
  serviceAccountName: old
  terminationGracePeriodSeconds: 1
  enableServiceLinks: true
  containers:
  - name: c
    image: a:1
    imagePullPolicy: IfNotPresent
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
    ports: [{containerPort: 80, hostPort: 80, protocol: TCP}, {containerPort: 53, hostPort: 53, protocol: UDP}]
    resources: {limits: {cpu: 101m, memory: 1Gi}, requests: {cpu: 50m, memory: 1Gi}}
    env: [{name: N, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}, {name: F, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: K, optional: false}}}]
    livenessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
    readinessProbe: {grpc: {port: 80, service: ""}, timeoutSeconds: 1, periodSeconds: 3, successThreshold: 1, failureThreshold: 3}
    lifecycle: {preStop: {httpGet: {port: 80, path: /, scheme: HTTP}}}
  volumes:
  - {name: none, emptyDir: {}}
  - {name: cm, configMap: {name: x, defaultMode: 420}}
  - {name: s, secret: {secretName: x, defaultMode: 420}}
  - {name: h, hostPath: {path: /x, type: ""}}
  - {name: i, image: {reference: a, pullPolicy: Always}}
  - {name: e, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], volumeMode: Filesystem}}}}
  - {name: p, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: t, expirationSeconds: 3600}}, {downwardAPI: {items: [{path: l, fieldRef: {apiVersion: v1, fieldPath: metadata.labels}}]}}]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			got := parse[*v1.Pod](t, r, c.in)
			raw := *r
			raw.Default = nil
			want := parse[*v1.Pod](t, &raw, c.want)
			if !equality.Semantic.DeepEqual(got, want) {
				t.Error(diff.Diff(want, got))
			}
		})
	}
}

// Templates are stored inside other objects: what only pods get would make every
// stored Deployment look changed.
func TestTemplatesAreDefaultedLessThanPods(t *testing.T) {
	template := &v1.PodTemplateSpec{Spec: v1.PodSpec{
		HostNetwork: true,
		Containers: []v1.Container{{
			Name: "c", Image: "a:1", Ports: []v1.ContainerPort{{ContainerPort: 80}},
			Resources: v1.ResourceRequirements{Limits: v1.ResourceList{}},
		}},
	}}
	DefaultPodTemplate(template)
	if s := template.Spec; s.EnableServiceLinks != nil || s.Containers[0].Ports[0].HostPort != 0 || s.Containers[0].Resources.Requests != nil {
		t.Errorf("a template got a pod's defaults: %+v", s)
	}
	if template.Spec.RestartPolicy != v1.RestartPolicyAlways {
		t.Error("a template did not get its own defaults")
	}
}

func TestPodIPsFollowPodIP(t *testing.T) {
	for _, c := range []struct {
		ip   string
		ips  []string
		want []string
	}{
		{"10.0.0.1", nil, []string{"10.0.0.1"}},
		{"", []string{"10.0.0.1", "fd00::1"}, []string{"10.0.0.1", "fd00::1"}},
		{"10.0.0.2", []string{"10.0.0.1"}, []string{"10.0.0.2"}},
	} {
		s := v1.PodStatus{PodIP: c.ip}
		for _, ip := range c.ips {
			s.PodIPs = append(s.PodIPs, v1.PodIP{IP: ip})
		}
		defaultPodStatus(&s)
		if s.PodIP != c.want[0] || len(s.PodIPs) != len(c.want) || s.PodIPs[0].IP != c.want[0] {
			t.Errorf("podIP %q podIPs %v became %q %v", c.ip, c.ips, s.PodIP, s.PodIPs)
		}
	}
}
