package authz_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/authz"
	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

func policy(t testing.TB) []api.Object {
	t.Helper()
	p, err := bootstrap.StandardPolicy()
	if err != nil {
		t.Fatal(err)
	}
	var objs []api.Object
	for _, o := range p.ClusterRoles {
		objs = append(objs, o)
	}
	for _, o := range p.ClusterRoleBindings {
		objs = append(objs, o)
	}
	for _, o := range p.Roles {
		objs = append(objs, o)
	}
	for _, o := range p.RoleBindings {
		objs = append(objs, o)
	}
	return objs
}

func newAuthorizer(t testing.TB, objs ...api.Object) (*authz.Authorizer, *lookuptest.Caches) {
	t.Helper()
	c := lookuptest.New(t, append(policy(t), objs...)...)
	rules, err := bootstrap.NodeRules()
	if err != nil {
		t.Fatal(err)
	}
	a, err := authz.New(authz.Config{Caches: c, NodeRules: rules})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := a.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return a, c
}

func who(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, user.AllAuthenticated)}
}

// request parses "verb [group/]resource[/subresource] [namespace/]name" or "verb /path".
func request(u user.Info, s string) authorizer.AttributesRecord {
	f := strings.Fields(s)
	a := authorizer.AttributesRecord{User: u, Verb: f[0]}
	if strings.HasPrefix(f[1], "/") {
		a.Path = f[1]
		return a
	}
	a.ResourceRequest = true
	a.Resource = f[1]
	if g, r, ok := strings.Cut(f[1], ":"); ok {
		a.APIGroup, a.Resource = g, r
	}
	a.Resource, a.Subresource, _ = strings.Cut(a.Resource, "/")
	if len(f) > 2 {
		a.Name = f[2]
		if ns, n, ok := strings.Cut(f[2], "/"); ok {
			a.Namespace, a.Name = ns, n
		}
	}
	return a
}

func TestRBAC(t *testing.T) {
	a, _ := newAuthorizer(t,
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "edit"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
			Subjects: []rbacv1.Subject{
				{Kind: "User", APIGroup: rbacv1.GroupName, Name: "alice"},
				{Kind: "ServiceAccount", Name: "builder"},
			},
		},
		&rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "one"},
			Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"s"}}},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "dev", Name: "one"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "one"},
			Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "readers"}},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "dangling"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "gone"},
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "mallory"}},
		},
	)
	for _, tt := range []struct {
		u      user.Info
		req    string
		allow  bool
		reason string
	}{
		{who("root", "system:masters"), "delete nodes n1", true, ""},
		{who("alice"), "create apps:deployments dev/", true, `RBAC: allowed by RoleBinding "edit/dev" of ClusterRole "edit" to User "alice"`},
		{who("alice"), "create apps:deployments prod/", false, ""},
		{who("alice"), "create apps:deployments", false, ""},
		{who("system:serviceaccount:dev:builder"), "patch apps:deployments/scale dev/x", true, `RBAC: allowed by RoleBinding "edit/dev" of ClusterRole "edit" to ServiceAccount "builder/dev"`},
		{who("system:serviceaccount:prod:builder"), "patch apps:deployments/scale dev/x", false, ""},
		{who("bob", "readers"), "get secrets dev/s", true, ""},
		{who("bob", "readers"), "get secrets dev/t", false, ""},
		{who("bob", "readers"), "list secrets dev/", false, ""},
		{who("bob"), "get /api/v1", true, ""},
		{who("bob"), "get /metrics", false, ""},
		{who("bob"), "create authorization.k8s.io:selfsubjectaccessreviews", true, ""},
		{&user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, "get /livez", true, ""},
		{&user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}, "get /api", false, ""},
		{who("system:kube-scheduler"), "create pods/binding dev/p", true, ""},
		{who("system:kube-scheduler"), "create pods dev/p", false, ""},
		{who("system:serviceaccount:kube-system:replicaset-controller"), "create pods dev/p", true, ""},
		{who("mallory"), "get pods dev/p", false, `rbac: RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found`},
	} {
		d, reason, err := a.Authorize(t.Context(), request(tt.u, tt.req))
		if err != nil || (d == authorizer.DecisionAllow) != tt.allow || d == authorizer.DecisionDeny {
			t.Errorf("%s %s: %v, %q, %v", tt.u.GetName(), tt.req, d, reason, err)
		}
		if tt.reason != "" && reason != tt.reason {
			t.Errorf("%s %s: reason %q, want %q", tt.u.GetName(), tt.req, reason, tt.reason)
		}
	}
}

func TestRBACFollows(t *testing.T) {
	a, c := newAuthorizer(t)
	b := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "carol"}},
	}
	want := func(d authorizer.Decision) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if got, _, _ := a.Authorize(t.Context(), request(who("carol"), "list pods dev/")); got == d {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("decision does not become %v", d)
			}
		}
	}
	want(authorizer.DecisionNoOpinion)
	c.Create(b)
	want(authorizer.DecisionAllow)
	c.Delete(b)
	want(authorizer.DecisionNoOpinion)
}

func TestForbiddenMessage(t *testing.T) {
	for _, tt := range []struct{ req, want string }{
		{"list pods y/", `pods is forbidden: User "x" cannot list resource "pods" in API group "" in the namespace "y"`},
		{"get apps:deployments/scale y/z", `deployments.apps "z" is forbidden: User "x" cannot get resource "deployments/scale" in API group "apps" in the namespace "y"`},
		{"create nodes", `nodes is forbidden: User "x" cannot create resource "nodes" in API group "" at the cluster scope`},
		{"get /metrics", `forbidden: User "x" cannot get path "/metrics"`},
	} {
		if got := authz.Forbidden(request(who("x"), tt.req), "").Error(); got != tt.want {
			t.Errorf("%s: %s", tt.req, got)
		}
	}
}

func TestNode(t *testing.T) {
	n1 := who("system:node:n1", user.NodesGroup)
	name := "n1"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec: corev1.PodSpec{
			NodeName: name, ServiceAccountName: "sa",
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}},
			Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "env"}}}}}},
			Volumes: []corev1.Volume{
				{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "vol"}}},
				{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}},
			},
		},
	}
	mirror := pod.DeepCopy()
	mirror.Name = "mirror"
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	mirror.Spec.ImagePullSecrets[0].Name = "stolen"
	elsewhere := pod.DeepCopy()
	elsewhere.Name, elsewhere.Spec.NodeName = "q", "n2"
	elsewhere.Spec.ImagePullSecrets[0].Name = "other"
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv"},
		Spec: corev1.PersistentVolumeSpec{
			ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "claim"},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				NodePublishSecretRef:       &corev1.SecretReference{Namespace: "csi", Name: "mount"},
				ControllerPublishSecretRef: &corev1.SecretReference{Namespace: "csi", Name: "controller"},
			}},
		},
	}
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: name}}
	a, c := newAuthorizer(t, pod, mirror, elsewhere, pv, va)
	for _, tt := range []struct {
		req   string
		allow bool
	}{
		{"get secrets ns/vol", true}, {"get secrets ns/pull", true}, {"watch secrets ns/pull", true},
		{"get secrets ns/other", false}, {"get secrets ns/stolen", false}, {"list secrets ns/", false}, {"update secrets ns/vol", false},
		{"get configmaps ns/env", true}, {"get configmaps other/env", false},
		{"get persistentvolumeclaims ns/claim", true}, {"get persistentvolumes pv", true},
		{"get secrets csi/mount", true}, {"get secrets csi/controller", false},
		{"get storage.k8s.io:volumeattachments va", true},
		{"create serviceaccounts/token ns/sa", true}, {"create serviceaccounts/token ns/admin", false},
		{"get pods ns/p", true}, {"get pods ns/q", false}, {"list pods", false}, {"patch pods/status ns/p", true},
		{"get nodes n1", true}, {"get nodes n2", false}, {"list nodes", false}, {"patch nodes/status n1", true},
		{"update coordination.k8s.io:leases kube-node-lease/n1", true}, {"update coordination.k8s.io:leases kube-node-lease/n2", false},
		{"update coordination.k8s.io:leases kube-system/n1", false},
		{"list services", true}, {"create events ns/", true}, {"delete nodes n1", false},
		{"list node.k8s.io:runtimeclasses", true},
	} {
		d, reason, err := a.Authorize(t.Context(), request(n1, tt.req))
		if err != nil || (d == authorizer.DecisionAllow) != tt.allow {
			t.Errorf("%s: %v, %q, %v", tt.req, d, reason, err)
		}
	}
	list := request(n1, "list pods")
	list.FieldSelectorRequirements = fields.OneTermEqualSelector("spec.nodeName", "n1").Requirements()
	if d, _, _ := a.Authorize(t.Context(), list); d != authorizer.DecisionAllow {
		t.Error("list of own pods is not allowed")
	}
	if _, reason, _ := a.Authorize(t.Context(), request(n1, "get secrets ns/other")); !strings.HasPrefix(reason, "node: no relationship found between node 'n1' and this object") {
		t.Errorf("reason %q", reason)
	}
	c.Delete(pod)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if d, _, _ := a.Authorize(t.Context(), request(n1, "get secrets ns/vol")); d != authorizer.DecisionAllow {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the pod is gone, its secret still readable")
		}
	}
	if d, _, _ := a.Authorize(t.Context(), request(n1, "get persistentvolumes pv")); d == authorizer.DecisionAllow {
		t.Error("the pod is gone, its volume still readable")
	}
}

func TestEscalation(t *testing.T) {
	a, _ := newAuthorizer(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "rbac"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "viewer"}},
	}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "super"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "super"}},
	})
	check := a.Escalation()
	role := func(verb string) *rbacv1.ClusterRole {
		return &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{"pods"}}}}
	}
	binding := func(name string) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}}
	}
	aggregate := role("get")
	aggregate.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
	for _, tt := range []struct {
		name, user, resource string
		obj                  api.Object
		err                  string
	}{
		{"held", "viewer", "clusterroles", role("get"), ""},
		{"not held", "viewer", "clusterroles", role("delete"),
			"user \"viewer\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}"},
		{"aggregation", "viewer", "clusterroles", aggregate, "must have cluster-admin privileges to use the aggregationRule"},
		{"admin", "super", "clusterroles", aggregate, ""},
		{"bind held", "viewer", "rolebindings", binding("view"), ""},
		{"bind more", "viewer", "rolebindings", binding("edit"), "is attempting to grant RBAC permissions not currently held"},
		{"bind missing", "viewer", "rolebindings", binding("none"), `"none" not found`},
		{"admin binds missing", "super", "rolebindings", binding("none"), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := check.Validate(t.Context(), &seams.Attributes{
				Operation: seams.Create, Resource: rbacv1.SchemeGroupVersion.WithResource(tt.resource),
				Namespace: "ns", Name: "x", Object: tt.obj, User: who(tt.user),
			})
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v", err)
			}
		})
	}
}

func BenchmarkAuthorize(b *testing.B) {
	a, _ := newAuthorizer(b)
	r := request(who("system:serviceaccount:kube-system:replicaset-controller", "system:serviceaccounts", "system:serviceaccounts:kube-system"), "create pods dev/")
	for b.Loop() {
		if d, _, _ := a.Authorize(b.Context(), r); d != authorizer.DecisionAllow {
			b.Fatal(d)
		}
	}
}
