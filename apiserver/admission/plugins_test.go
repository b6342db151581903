package admission

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

func list(kv ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(kv); i += 2 {
		l[corev1.ResourceName(kv[i])] = resource.MustParse(kv[i+1])
	}
	return l
}

func csrPEM(t *testing.T, subject pkix.Name) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func TestNodeRestriction(t *testing.T) {
	n1 := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "uid-n1", Labels: map[string]string{"a": "b"}}}
	mine := podIn("ns", func(p *corev1.Pod) {
		p.UID = "uid-p"
		p.Spec.NodeName = "n1"
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}}}}}}}
	})
	other := podIn("ns", func(p *corev1.Pod) { p.Name, p.Spec.NodeName = "other", "n2" })
	c := lookuptest.New(t, n1, mine, other)
	p := &nodeRestriction{caches: c, authorizer: allow()}
	kubelet := &user.DefaultInfo{Name: "system:node:n1", Groups: []string{user.NodesGroup}}

	mirror := func(change func(*corev1.Pod)) *corev1.Pod {
		return podIn("ns", func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			p.Spec.NodeName = "n1"
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "uid-n1", Controller: ptr.To(true)}}
			if change != nil {
				change(p)
			}
		})
	}
	relabelled := func(k, v string) *corev1.Node {
		n := n1.DeepCopy()
		n.Labels[k] = v
		return n
	}
	tainted := n1.DeepCopy()
	tainted.Spec.Taints = []corev1.Taint{{Key: "x"}}
	token := func(audience string, ref *authenticationv1.BoundObjectReference) *authenticationv1.TokenRequest {
		tr := &authenticationv1.TokenRequest{ObjectMeta: objectMeta("ns", "sa"), Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: ref}}
		if audience != "" {
			tr.Spec.Audiences = []string{audience}
		}
		return tr
	}
	bound := &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "uid-p"}
	csr := func(cn string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeletServingSignerName, Request: csrPEM(t, pkix.Name{CommonName: cn})}}
	}
	csrs := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
	leases := coordinationv1.SchemeGroupVersion.WithResource("leases")
	withLabel := mine.DeepCopy()
	withLabel.Labels = map[string]string{"app": "x"}
	for _, tt := range []struct {
		name string
		a    *seams.Attributes
		sub  string
		err  string
	}{
		{"mirror pod", write(seams.Create, core("pods"), mirror(nil), nil), "", ""},
		{"ordinary pod", write(seams.Create, core("pods"), podIn("ns", nil), nil), "", "can only create mirror pods"},
		{"mirror pod of another", write(seams.Create, core("pods"), mirror(func(p *corev1.Pod) { p.Spec.NodeName = "n2" }), nil), "", "can only create pods with spec.nodeName set to itself"},
		{"mirror pod with account", write(seams.Create, core("pods"), mirror(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "x" }), nil), "", "can not create pods that reference serviceaccounts"},
		{"mirror pod with configmap", write(seams.Create, core("pods"), mirror(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "x"}}}}}
		}), nil), "", "can not create pods that reference configmaps"},
		{"mirror pod owned by nobody", write(seams.Create, core("pods"), mirror(func(p *corev1.Pod) { p.OwnerReferences = nil }), nil), "", "can only create pods with an owner reference set to itself"},
		{"mirror pod of an old node", write(seams.Create, core("pods"), mirror(func(p *corev1.Pod) { p.OwnerReferences[0].UID = "old" }), nil), "", "UID mismatch"},
		{"delete own pod", write(seams.Delete, core("pods"), nil, mine), "", ""},
		{"delete another's pod", write(seams.Delete, core("pods"), nil, other), "", "can only delete pods with spec.nodeName set to itself"},
		{"own status", write(seams.Update, core("pods"), mine, mine), "status", ""},
		{"another's status", write(seams.Update, core("pods"), other, other), "status", "can only update pod status for pods with spec.nodeName set to itself"},
		{"labels through status", write(seams.Update, core("pods"), withLabel, mine), "status", "cannot update labels through pod status"},
		{"exec", write(seams.Create, core("pods"), mine, nil), "exec", "unexpected pod subresource"},
		{"own node", write(seams.Update, core("nodes"), relabelled("kubernetes.io/arch", "x"), n1), "", ""},
		{"node.kubernetes.io label", write(seams.Update, core("nodes"), relabelled("sub.node.kubernetes.io/x", "x"), n1), "", ""},
		{"restricted label", write(seams.Update, core("nodes"), relabelled("node-restriction.kubernetes.io/x", "x"), n1), "", "is not allowed to modify labels: node-restriction.kubernetes.io/x"},
		{"role label", write(seams.Create, core("nodes"), relabelled("node-role.kubernetes.io/control-plane", ""), nil), "", "is not allowed to set the following labels: node-role.kubernetes.io/control-plane"},
		{"taints", write(seams.Update, core("nodes"), tainted, n1), "", "is not allowed to modify taints"},
		{"another node", write(seams.Update, core("nodes"), &corev1.Node{ObjectMeta: objectMeta("", "n2")}, nil), "status", `node "n1" is not allowed to modify node`},
		{"token", write(seams.Create, core("serviceaccounts"), token("vault", bound), nil), "token", ""},
		{"token for another audience", write(seams.Create, core("serviceaccounts"), token("else", bound), nil), "token", `is not authorized to request tokens for audience "else"`},
		{"token without pod", write(seams.Create, core("serviceaccounts"), token("", nil), nil), "token", "node requested token not bound to a pod"},
		{"token of another's pod", write(seams.Create, core("serviceaccounts"), token("", &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "other", UID: "x"}), nil), "token", "does not match the UID in record"},
		{"lease", write(seams.Create, leases, &coordinationv1.Lease{ObjectMeta: objectMeta("kube-node-lease", "n1")}, nil), "", ""},
		{"lease of another", write(seams.Create, leases, &coordinationv1.Lease{ObjectMeta: objectMeta("kube-node-lease", "n2")}, nil), "", "can only access node lease with the same name"},
		{"certificate", write(seams.Create, csrs, csr("system:node:n1"), nil), "", ""},
		{"certificate of another", write(seams.Create, csrs, csr("system:node:n2"), nil), "", "can only create a node CSR with CN=system:node:n1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.a.User, tt.a.Subresource = kubelet, tt.sub
			err := admit(t, p, tt.a)
			if tt.err == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantForbidden(t, err, tt.err)
		})
	}
	if err := admit(t, p, write(seams.Create, core("pods"), podIn("ns", nil), nil)); err != nil {
		t.Errorf("somebody who is no node: %v", err)
	}
}

func TestLimitRanger(t *testing.T) {
	c := lookuptest.New(t, &corev1.LimitRange{ObjectMeta: objectMeta("ns", "l"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Default: list("cpu", "500m"), DefaultRequest: list("cpu", "100m"), Min: list("cpu", "50m"), Max: list("cpu", "1"), MaxLimitRequestRatio: list("cpu", "10")},
		{Type: corev1.LimitTypePod, Max: list("cpu", "2")},
		{Type: corev1.LimitTypePersistentVolumeClaim, Min: list("storage", "1Gi"), Max: list("storage", "2Gi")},
	}}})
	p := &limitRanger{caches: c}
	create := func(change func(*corev1.Pod)) (*corev1.Pod, error) {
		pod := podIn("ns", change)
		return pod, admit(t, p, write(seams.Create, core("pods"), pod, nil))
	}
	pod, err := create(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := pod.Spec.Containers[0].Resources
	if r.Requests.Cpu().String() != "100m" || r.Limits.Cpu().String() != "500m" ||
		pod.Annotations[limitRangerAnnotation] != "LimitRanger plugin set: cpu request for container c; cpu limit for container c" {
		t.Errorf("defaults: %+v, %v", r, pod.Annotations)
	}
	cpu := func(request, limit string, more ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list("cpu", request), Limits: list("cpu", limit)}
			for _, name := range more {
				c := *p.Spec.Containers[0].DeepCopy()
				c.Name = name
				p.Spec.Containers = append(p.Spec.Containers, c)
			}
		}
	}
	_, err = create(cpu("10m", "50m"))
	wantForbidden(t, err, "minimum cpu usage per Container is 50m, but request is 10m")
	_, err = create(cpu("1", "2"))
	wantForbidden(t, err, "maximum cpu usage per Container is 1, but limit is 2")
	_, err = create(cpu("50m", "1"))
	wantForbidden(t, err, "cpu max limit to request ratio per Container is 10, but provided ratio is 20.000000")
	_, err = create(cpu("1", "1", "d", "e"))
	wantForbidden(t, err, "maximum cpu usage per Pod is 2, but limit is 3")

	claim := &corev1.PersistentVolumeClaim{ObjectMeta: objectMeta("ns", "c")}
	claim.Spec.Resources.Requests = list("storage", "3Gi")
	wantForbidden(t, admit(t, p, write(seams.Create, core("persistentvolumeclaims"), claim, nil)), "maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi")
	if _, err := create(func(p *corev1.Pod) { p.Namespace = "free"; cpu("5", "5")(p) }); err != nil {
		t.Errorf("a namespace without limits: %v", err)
	}
}

type recorded []string

func (r *recorded) AddWarning(_, text string) { *r = append(*r, text) }

func TestPodSecurity(t *testing.T) {
	ns := func(name string, labels map[string]string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	}
	enforce := ns("strict", map[string]string{"pod-security.kubernetes.io/enforce": "baseline", "pod-security.kubernetes.io/warn": "restricted"})
	c := lookuptest.New(t, enforce, ns("free", nil), podIn("free", func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
	p, err := newPodSecurity(c)
	if err != nil {
		t.Fatal(err)
	}
	check := func(a *seams.Attributes) (recorded, error) {
		var w recorded
		return w, func() error { return p.Validate(warning.WithWarningRecorder(context.Background(), &w), a) }()
	}
	host := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	_, err = check(write(seams.Create, core("pods"), podIn("strict", host), nil))
	wantForbidden(t, err, `pods "p" is forbidden: violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`)
	if _, err := check(write(seams.Create, core("pods"), podIn("free", host), nil)); err != nil {
		t.Error(err)
	}
	var w recorded
	ctx := warning.WithWarningRecorder(t.Context(), &w)
	if err := p.Validate(ctx, write(seams.Create, core("pods"), podIn("strict", nil), nil)); err != nil || len(w) != 1 || !strings.HasPrefix(w[0], `would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false`) {
		t.Errorf("warnings %q, %v", w, err)
	}
	w = nil
	d := &appsv1.Deployment{ObjectMeta: objectMeta("strict", "d")}
	d.Spec.Template.Spec = podIn("strict", host).Spec
	if err := p.Validate(ctx, write(seams.Create, appsv1.SchemeGroupVersion.WithResource("deployments"), d, nil)); err != nil || len(w) != 1 {
		t.Errorf("deployment: warnings %q, %v", w, err)
	}
	w = nil
	raised := ns("free", map[string]string{"pod-security.kubernetes.io/enforce": "baseline"})
	if err := p.Validate(ctx, write(seams.Update, core("namespaces"), raised, ns("free", nil))); err != nil || len(w) != 2 ||
		w[0] != `existing pods in namespace "free" violate the new PodSecurity enforce level "baseline:latest"` || w[1] != "p: host namespaces" {
		t.Errorf("raised level: warnings %q, %v", w, err)
	}
	if _, err := check(write(seams.Create, core("namespaces"), ns("x", map[string]string{"pod-security.kubernetes.io/enforce": "nonsense"}), nil)); !apierrors.IsInvalid(err) {
		t.Errorf("bad label: %v", err)
	}
}

func TestStorageAndClasses(t *testing.T) {
	marked := func(name string, age time.Duration) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true", networkingv1.AnnotationIsDefaultIngressClass: "true"},
		}
	}
	c := lookuptest.New(t,
		&storagev1.StorageClass{ObjectMeta: marked("old", time.Hour), AllowVolumeExpansion: ptr.To(true)},
		&storagev1.StorageClass{ObjectMeta: marked("new", time.Minute)},
		&networkingv1.IngressClass{ObjectMeta: marked("nginx", time.Hour)},
		&nodev1.RuntimeClass{
			ObjectMeta: objectMeta("", "vm"), Handler: "vm", Overhead: &nodev1.Overhead{PodFixed: list("cpu", "100m")},
			Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"}, Tolerations: []corev1.Toleration{{Key: "vm", Operator: corev1.TolerationOpExists}}},
		},
	)
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		o := &corev1.PersistentVolumeClaim{ObjectMeta: objectMeta("ns", "c")}
		if change != nil {
			change(o)
		}
		return o
	}
	o := claim(nil)
	if err := admit(t, &defaultStorageClass{caches: c}, write(seams.Create, core("persistentvolumeclaims"), o, nil)); err != nil || *o.Spec.StorageClassName != "new" {
		t.Errorf("default class: %v, %v", o.Spec.StorageClassName, err)
	}
	o = claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("") })
	if err := admit(t, &defaultStorageClass{caches: c}, write(seams.Create, core("persistentvolumeclaims"), o, nil)); err != nil || *o.Spec.StorageClassName != "" {
		t.Errorf("no class wanted: %v, %v", o.Spec.StorageClassName, err)
	}
	ingress := &networkingv1.Ingress{ObjectMeta: objectMeta("ns", "i")}
	if err := admit(t, &defaultIngressClass{caches: c}, write(seams.Create, networkingv1.SchemeGroupVersion.WithResource("ingresses"), ingress, nil)); err != nil || *ingress.Spec.IngressClassName != "nginx" {
		t.Errorf("ingress class: %v, %v", ingress.Spec.IngressClassName, err)
	}
	for range 2 {
		if err := admit(t, &storageProtection{}, write(seams.Create, core("persistentvolumeclaims"), o, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if len(o.Finalizers) != 1 || o.Finalizers[0] != "kubernetes.io/pvc-protection" {
		t.Errorf("finalizers %v", o.Finalizers)
	}

	sized := func(size, class string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return claim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Resources.Requests, c.Spec.StorageClassName, c.Status.Phase = list("storage", size), &class, phase
		})
	}
	grow := func(class string, phase corev1.PersistentVolumeClaimPhase) error {
		return admit(t, &claimResize{caches: c}, write(seams.Update, core("persistentvolumeclaims"), sized("2Gi", class, phase), sized("1Gi", class, phase)))
	}
	if err := grow("old", corev1.ClaimBound); err != nil {
		t.Error(err)
	}
	wantForbidden(t, grow("new", corev1.ClaimBound), "the storageclass that provisions the pvc must support resize")
	wantForbidden(t, grow("old", corev1.ClaimPending), "Only bound persistent volume claims can be expanded")

	rc := &runtimeClass{caches: c}
	pod := podIn("ns", func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr.To("vm") })
	for range 2 {
		if err := admit(t, rc, write(seams.Create, core("pods"), pod, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if pod.Spec.NodeSelector["vm"] != "yes" || len(pod.Spec.Tolerations) != 1 || pod.Spec.Overhead.Cpu().String() != "100m" {
		t.Errorf("runtime class: %+v", pod.Spec)
	}
	wantForbidden(t, admit(t, rc, write(seams.Create, core("pods"), podIn("ns", func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr.To("none") }), nil)), `RuntimeClass "none" not found`)
	wantForbidden(t, admit(t, rc, write(seams.Create, core("pods"), podIn("ns", func(p *corev1.Pod) { p.Spec.Overhead = list("cpu", "1") }), nil)), "Pod Overhead set without corresponding RuntimeClass")
	wantForbidden(t, admit(t, rc, write(seams.Create, core("pods"), podIn("ns", func(p *corev1.Pod) {
		p.Spec.RuntimeClassName, p.Spec.NodeSelector = ptr.To("vm"), map[string]string{"vm": "no"}
	}), nil)), "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes")
}

func TestCertificates(t *testing.T) {
	csrs := certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests")
	csr := func(signer string, change func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
		c := &certificatesv1.CertificateSigningRequest{ObjectMeta: objectMeta("", "c"), Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer}}
		if change != nil {
			change(c)
		}
		return c
	}
	p := &certificates{authorizer: allow("approve signers/example.com/one", "sign signers/example.com/*")}
	on := func(sub string, next, old api.Object) *seams.Attributes {
		a := write(seams.Update, csrs, next, old)
		a.Subresource = sub
		return a
	}
	signed := func(c *certificatesv1.CertificateSigningRequest) { c.Status.Certificate = []byte("x") }
	for _, tt := range []struct {
		a   *seams.Attributes
		err string
	}{
		{on("approval", csr("example.com/one", nil), csr("example.com/one", nil)), ""},
		{on("approval", csr("example.com/two", nil), csr("example.com/two", nil)), `user not permitted to approve requests with signerName "example.com/two"`},
		{on("status", csr("example.com/two", signed), csr("example.com/two", nil)), ""},
		{on("status", csr("other.com/two", signed), csr("other.com/two", nil)), `user not permitted to sign requests with signerName "other.com/two"`},
		{on("status", csr("other.com/two", nil), csr("other.com/two", nil)), ""},
		{write(seams.Create, csrs, csr(certificatesv1.KubeAPIServerClientSignerName, func(c *certificatesv1.CertificateSigningRequest) {
			c.Spec.Request = csrPEM(t, pkix.Name{CommonName: "x", Organization: []string{"system:masters"}})
		}), nil), "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"},
	} {
		err := admit(t, p, tt.a)
		if tt.err == "" {
			if err != nil {
				t.Error(err)
			}
			continue
		}
		wantForbidden(t, err, tt.err)
	}
}

func TestNodesAndTopology(t *testing.T) {
	zone := map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", "other": "x"}
	c := lookuptest.New(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: zone}, Status: corev1.NodeStatus{Allocatable: list("cpu", "1", "memory", "1Gi")}})
	node := &corev1.Node{ObjectMeta: objectMeta("", "fresh")}
	for range 2 {
		if err := admit(t, &taintNodes{}, write(seams.Create, core("nodes"), node, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if len(node.Spec.Taints) != 1 || node.Spec.Taints[0].Key != corev1.TaintNodeNotReady || node.Spec.Taints[0].Effect != corev1.TaintEffectNoSchedule {
		t.Errorf("taints %v", node.Spec.Taints)
	}
	binding := &corev1.Binding{ObjectMeta: objectMeta("ns", "p"), Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}
	a := write(seams.Create, core("pods"), binding, nil)
	a.Subresource = "binding"
	if err := admit(t, &topologyLabels{caches: c}, a); err != nil || len(binding.Labels) != 2 || binding.Labels[corev1.LabelTopologyZone] != "z" {
		t.Errorf("labels %v, %v", binding.Labels, err)
	}

	sized := func(cpu string) *corev1.Pod {
		return podIn("ns", func(p *corev1.Pod) {
			p.Spec.NodeName = "n"
			p.Spec.Containers[0].Resources.Requests = list("cpu", cpu)
		})
	}
	resize := write(seams.Update, core("pods"), sized("2"), sized("500m"))
	resize.Subresource = "resize"
	wantForbidden(t, admit(t, &podResize{caches: c}, resize), "node didn't have enough allocatable resources: cpu, requested: 2000, allocatable: 1000")
}
