package reviews_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/binding"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/eviction"
	"github.com/skiff-k8s/skiff/apiserver/reviews"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// rights allow everything but to those called mallory.
type rights struct{ authorizer.AuthorizerFunc }

func (rights) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}, nil, false, nil
}

func newServer(t *testing.T) (*servertest.Server, kubernetes.Interface) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := authn.NewIssuer(authn.IssuerConfig{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	s := servertest.New(t, func(c *apiserver.Config) {
		caches := c.Caches.(*cacher.Caches)
		users, err := authn.New(authn.Config{
			Issuer: issuer, Caches: caches, Anonymous: true,
			Tokens: map[string]user.Info{"alice": &user.DefaultInfo{Name: "alice", UID: "1", Extra: map[string][]string{"example.com/x": {"y"}}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		z := rights{func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetUser().GetName() == "mallory" {
				return authorizer.DecisionNoOpinion, "mallory may not", nil
			}
			return authorizer.DecisionAllow, "", nil
		}}
		e, err := reviews.Endpoints(reviews.Config{Tokens: users, Audiences: users.Audiences(), Authorizer: z, Rules: z, Issuer: issuer, Caches: caches})
		if err != nil {
			t.Fatal(err)
		}
		c.Authenticator = users
		c.Endpoints = append(e, binding.Endpoints(caches, nil)...)
		c.Endpoints = append(c.Endpoints, eviction.Endpoint(caches, nil))
	})
	cfg := s.Config()
	cfg.BearerToken = "alice"
	k, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"ns"} {
		if _, err := k.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s, k
}

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{ServiceAccountName: "sa", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

func TestAccessReviews(t *testing.T) {
	_, k := newServer(t)
	ctx := t.Context()
	sar := func(who string) *authorizationv1.SubjectAccessReview {
		return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: who, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "ns"}}}
	}
	r, err := k.AuthorizationV1().SubjectAccessReviews().Create(ctx, sar("bob"), metav1.CreateOptions{})
	if err != nil || !r.Status.Allowed || r.Status.Denied {
		t.Errorf("bob: %+v, %v", r, err)
	}
	r, err = k.AuthorizationV1().SubjectAccessReviews().Create(ctx, sar("mallory"), metav1.CreateOptions{})
	if err != nil || r.Status.Allowed || r.Status.Reason != "mallory may not" {
		t.Errorf("mallory: %+v, %v", r, err)
	}
	if _, err := k.AuthorizationV1().SubjectAccessReviews().Create(ctx, sar(""), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("nobody: %v", err)
	}
	self, err := k.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/x", Verb: "get"}}}, metav1.CreateOptions{})
	if err != nil || !self.Status.Allowed {
		t.Errorf("self: %+v, %v", self, err)
	}
	local := &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: sar("bob").Spec}
	if l, err := k.AuthorizationV1().LocalSubjectAccessReviews("ns").Create(ctx, local, metav1.CreateOptions{}); err != nil || !l.Status.Allowed {
		t.Errorf("local: %+v, %v", l, err)
	}
	local.Spec.ResourceAttributes.Namespace = "other"
	if _, err := k.AuthorizationV1().LocalSubjectAccessReviews("ns").Create(ctx, local, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("local of another namespace: %v", err)
	}
	rules, err := k.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "ns"}}, metav1.CreateOptions{})
	if err != nil || len(rules.Status.ResourceRules) != 1 || rules.Status.ResourceRules[0].Resources[0] != "pods" {
		t.Errorf("rules: %+v, %v", rules, err)
	}
	who, err := k.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "alice" || who.Status.UserInfo.UID != "1" || who.Status.UserInfo.Extra["example.com/x"][0] != "y" {
		t.Errorf("who am I: %+v, %v", who, err)
	}
}

func TestTokens(t *testing.T) {
	s, k := newServer(t)
	ctx := t.Context()
	sa, err := k.CoreV1().ServiceAccounts("ns").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := k.CoreV1().Pods("ns").Create(ctx, pod("p", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	request := func(change func(*authenticationv1.TokenRequest)) (*authenticationv1.TokenRequest, error) {
		tr := &authenticationv1.TokenRequest{}
		if change != nil {
			change(tr)
		}
		return k.CoreV1().ServiceAccounts("ns").CreateToken(ctx, "sa", tr, metav1.CreateOptions{})
	}
	toPod := func(tr *authenticationv1.TokenRequest) {
		tr.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: p.UID}
		tr.Spec.ExpirationSeconds = ptr.To[int64](3607)
	}
	tr, err := request(toPod)
	if err != nil {
		t.Fatal(err)
	}
	if tr.Name != "sa" || tr.UID != sa.UID || time.Until(tr.Status.ExpirationTimestamp.Time) > 3607*time.Second || tr.Spec.Audiences[0] != authn.DefaultIssuer {
		t.Errorf("token request %+v", tr)
	}
	// The token is good for the server, and reviews say whose it is.
	cfg := s.Config()
	cfg.BearerToken = tr.Status.Token
	as, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	who, err := as.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || who.Status.UserInfo.Username != "system:serviceaccount:ns:sa" || who.Status.UserInfo.Extra["authentication.kubernetes.io/pod-name"][0] != "p" {
		t.Errorf("who: %+v, %v", who, err)
	}
	review := func(token string, audiences ...string) *authenticationv1.TokenReview {
		t.Helper()
		r, err := k.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := review(tr.Status.Token); !r.Status.Authenticated || r.Status.User.Username != "system:serviceaccount:ns:sa" || r.Status.Audiences[0] != authn.DefaultIssuer {
		t.Errorf("review %+v", r.Status)
	}
	if r := review(tr.Status.Token, "vault"); r.Status.Authenticated || !strings.Contains(r.Status.Error, "is invalid for the target audiences") {
		t.Errorf("review for another audience: %+v", r.Status)
	}
	if r := review("nonsense"); r.Status.Authenticated || r.Status.Error == "" {
		t.Errorf("review of nonsense: %+v", r.Status)
	}
	vault, err := request(func(tr *authenticationv1.TokenRequest) { tr.Spec.Audiences = []string{"vault"} })
	if err != nil {
		t.Fatal(err)
	}
	if r := review(vault.Status.Token, "vault", "other"); !r.Status.Authenticated || len(r.Status.Audiences) != 1 || r.Status.Audiences[0] != "vault" {
		t.Errorf("review of vault's token: %+v", r.Status)
	}
	for name, change := range map[string]func(*authenticationv1.TokenRequest){
		"too short": func(tr *authenticationv1.TokenRequest) { tr.Spec.ExpirationSeconds = ptr.To[int64](10) },
		"old pod":   func(tr *authenticationv1.TokenRequest) { toPod(tr); tr.Spec.BoundObjectRef.UID = "old" },
		"no pod":    func(tr *authenticationv1.TokenRequest) { toPod(tr); tr.Spec.BoundObjectRef.Name = "none" },
		"strange":   func(tr *authenticationv1.TokenRequest) { toPod(tr); tr.Spec.BoundObjectRef.Kind = "ConfigMap" },
	} {
		if _, err := request(change); err == nil {
			t.Errorf("%s: issued", name)
		}
	}
	// Once the pod is gone, so is its token.
	if err := k.CoreV1().Pods("ns").Delete(ctx, "p", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); review(tr.Status.Token).Status.Authenticated; {
		if time.Now().After(deadline) {
			t.Fatal("the token outlives its pod")
		}
	}
}

func TestBinding(t *testing.T) {
	_, k := newServer(t)
	ctx := t.Context()
	pods := k.CoreV1().Pods("ns")
	p, err := pods.Create(ctx, pod("p", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bind := func(uid, node string) error {
		b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: p.UID, Annotations: map[string]string{"a": "b"}}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		if uid != "" {
			b.UID = "other"
		}
		return pods.Bind(ctx, b, metav1.CreateOptions{})
	}
	if err := bind("other", "n1"); !apierrors.IsConflict(err) {
		t.Errorf("binding of another pod: %v", err)
	}
	if err := bind("", "n1"); err != nil {
		t.Fatal(err)
	}
	if p, err = pods.Get(ctx, "p", metav1.GetOptions{}); err != nil || p.Spec.NodeName != "n1" || p.Annotations["a"] != "b" || p.Status.Conditions[len(p.Status.Conditions)-1].Type != corev1.PodScheduled {
		t.Errorf("bound pod %+v, %v", p, err)
	}
	if err := bind("", "n2"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"`) {
		t.Errorf("bound twice: %v", err)
	}
	if _, err := pods.Create(ctx, pod("gated", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}} }), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err = pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "gated"}, Target: corev1.ObjectReference{Name: "n1"}}, metav1.CreateOptions{})
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), "non-empty .spec.schedulingGates") {
		t.Errorf("gated: %v", err)
	}
}

func TestEviction(t *testing.T) {
	_, k := newServer(t)
	ctx := t.Context()
	pods := k.CoreV1().Pods("ns")
	running := func(name string) {
		t.Helper()
		p, err := pods.Create(ctx, pod(name, func(p *corev1.Pod) { p.Spec.NodeName = "n" }), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		if _, err := pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	evict := func(name string, dryRun bool) error {
		e := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}}
		if dryRun {
			e.DeleteOptions = &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
		}
		// Clients wait as long as a 429 tells them, and try again; the answer itself is wanted here.
		return k.PolicyV1().RESTClient().Post().AbsPath("/api/v1").Namespace("ns").Resource("pods").Name(name).
			SubResource("eviction").Body(e).MaxRetries(0).Do(ctx).Error()
	}
	one := intstr.FromInt32(1)
	pdb, err := k.PolicyV1().PodDisruptionBudgets("ns").Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	running("a")
	if err := evict("a", false); !apierrors.IsTooManyRequests(err) {
		t.Errorf("budget not observed yet: %v", err)
	}
	pdb.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: pdb.Generation, DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2}
	if _, err := k.PolicyV1().PodDisruptionBudgets("ns").UpdateStatus(ctx, pdb, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := evict("a", true); err != nil {
		t.Errorf("dry run: %v", err)
	}
	if err := evict("a", false); err != nil {
		t.Fatal(err)
	}
	if p, err := pods.Get(ctx, "a", metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil || p.Status.Conditions[1].Type != corev1.DisruptionTarget {
		t.Errorf("evicted pod %+v, %v", p, err)
	}
	running("b")
	err = evict("b", false)
	if !apierrors.IsTooManyRequests(err) || err.Error() != "Cannot evict pod as it would violate the pod's disruption budget." {
		t.Errorf("budget is spent: %v", err)
	}
	if pdb, err = k.PolicyV1().PodDisruptionBudgets("ns").Get(ctx, "b", metav1.GetOptions{}); err != nil || pdb.Status.DisruptionsAllowed != 0 || len(pdb.Status.DisruptedPods) != 1 {
		t.Errorf("budget %+v, %v", pdb, err)
	}
	if _, err := pods.Create(ctx, pod("pending", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := evict("pending", false); err != nil {
		t.Errorf("pending pod: %v", err)
	}
	if _, err := pods.Get(ctx, "pending", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("pending pod is still there: %v", err)
	}
	if err := evict("none", false); !apierrors.IsNotFound(err) {
		t.Errorf("missing pod: %v", err)
	}
}
