package robustness

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/store/mem"
)

func tokenKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// twoServers are two servers of one cluster, and what a test does with them.
type twoServers struct {
	*testing.T
	clients []kubernetes.Interface
	servers []*servertest.Server
}

func (s *twoServers) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// soon waits for what a watch brings.
func (s *twoServers) soon(what string, is func(ctx context.Context) bool) {
	s.Helper()
	err := wait.PollUntilContextTimeout(s.Context(), time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) { return is(ctx), nil })
	if err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

// TestLearn: what is changed at one server the other goes by: at once where it asks the
// quorum, and as soon as its watch tells it elsewhere.
func TestLearn(t *testing.T) {
	clients, servers, _ := whole(t, mem.New(mem.Config{}), 2)
	s := &twoServers{t, clients, servers}
	a, b := clients[0], clients[1]
	ctx := t.Context()

	t.Run("namespaces and ServiceAccounts", func(t *testing.T) {
		s := &twoServers{t, clients, servers}
		for i := range 20 { // each is new to the other server
			ns := fmt.Sprint("ns-", i)
			_, err := a.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
			s.must(err)
			_, err = b.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
			s.must(err)
			token, err := a.CoreV1().ServiceAccounts(ns).CreateToken(ctx, "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			s.must(err)
			valid := func(k kubernetes.Interface) bool {
				r, err := k.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, metav1.CreateOptions{})
				s.must(err)
				return r.Status.Authenticated
			}
			if !valid(b) || !valid(a) {
				t.Fatal("a token is not good at the other server at once")
			}
			s.must(a.CoreV1().ServiceAccounts(ns).Delete(ctx, "robot", metav1.DeleteOptions{}))
			s.soon("the token of a deleted ServiceAccount is refused", func(context.Context) bool { return !valid(b) })
			s.must(b.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
			_, err = a.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
			for ; err == nil; _, err = a.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "late-"}}, metav1.CreateOptions{}) {
			}
			if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
				t.Errorf("create in a namespace that ends: %v", err)
			}
		}
	})

	t.Run("rights", func(t *testing.T) {
		s := &twoServers{t, clients, servers}
		conf := servers[1].Config()
		conf.BearerToken = servertest.UserToken
		nobody, err := kubernetes.NewForConfig(conf)
		s.must(err)
		may := func(ctx context.Context) bool {
			_, err := nobody.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
			return err == nil
		}
		if may(ctx) {
			t.Fatal("nobody may list pods")
		}
		_, err = a.RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "nobody"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "nobody"}},
		}, metav1.CreateOptions{})
		s.must(err)
		s.soon("a right that was given", may)
		s.must(a.RbacV1().RoleBindings("default").Delete(ctx, "nobody", metav1.DeleteOptions{}))
		s.soon("a right that was taken", func(ctx context.Context) bool { return !may(ctx) })
	})

	t.Run("custom resources", func(t *testing.T) {
		s := &twoServers{t, clients, servers}
		post := func(k kubernetes.Interface, path, body string) error {
			return k.Discovery().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(ctx).Error()
		}
		s.must(post(a, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"boats.example.com"},
			"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"boats","singular":"boat","kind":"Boat"},
			"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"oars":{"type":"integer"}}}}}}}]}}`))
		const boats = "/apis/example.com/v1/namespaces/default/boats"
		s.soon("a custom resource is served", func(context.Context) bool {
			return post(b, boats, `{"apiVersion":"example.com/v1","kind":"Boat","metadata":{"name":"skiff"},"spec":{"oars":2}}`) == nil
		})
		raw, err := a.Discovery().RESTClient().Get().AbsPath(boats + "/skiff").DoRaw(ctx)
		if err != nil {
			t.Errorf("what the other server stored: %s %v", raw, err)
		}
		s.must(a.Discovery().RESTClient().Delete().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/boats.example.com").Do(ctx).Error())
		s.soon("a custom resource is not served any more", func(context.Context) bool {
			_, err := b.Discovery().RESTClient().Get().AbsPath(boats).DoRaw(ctx)
			return apierrors.IsNotFound(err)
		})
	})

	t.Run("APIServices", func(t *testing.T) {
		s := &twoServers{t, clients, servers}
		s.must(a.Discovery().RESTClient().Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").SetHeader("Content-Type", "application/json").Body([]byte(
			`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.far.example.com"},"spec":{"group":"far.example.com","version":"v1","groupPriorityMinimum":1000,"versionPriority":10,"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"far"}}}`)).Do(ctx).Error())
		s.soon("an extension API server is asked", func(context.Context) bool {
			_, err := b.Discovery().RESTClient().Get().AbsPath("/apis/far.example.com/v1/things").DoRaw(ctx)
			return apierrors.IsServiceUnavailable(err)
		})
		s.must(b.Discovery().RESTClient().Delete().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1.far.example.com").Do(ctx).Error())
		s.soon("an extension API server is not asked any more", func(context.Context) bool {
			_, err := a.Discovery().RESTClient().Get().AbsPath("/apis/far.example.com/v1/things").DoRaw(ctx)
			return apierrors.IsNotFound(err)
		})
	})

	t.Run("admission policies", func(t *testing.T) {
		s := &twoServers{t, clients, servers}
		fail := admissionregistrationv1.Fail
		_, err := a.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "no-sinking"},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				FailurePolicy: &fail,
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{"CREATE"}, Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
				}}}},
				Validations: []admissionregistrationv1.Validation{{Expression: "!object.metadata.name.startsWith('sink')"}},
			},
		}, metav1.CreateOptions{})
		s.must(err)
		_, err = b.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(ctx, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "no-sinking"},
			Spec:       admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: "no-sinking", ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}},
		}, metav1.CreateOptions{})
		s.must(err)
		for _, k := range clients {
			s.soon("a policy holds", func(ctx context.Context) bool {
				_, err := k.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "sink-"}}, metav1.CreateOptions{})
				return apierrors.IsInvalid(err) || apierrors.IsForbidden(err)
			})
		}
	})

	t.Run("priority and fairness", func(t *testing.T) {
		s := &twoServers{t, clients, servers}
		made, err := a.FlowcontrolV1().FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
			ObjectMeta: metav1.ObjectMeta{Name: "nobody"},
			Spec: flowcontrolv1.FlowSchemaSpec{
				PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"}, MatchingPrecedence: 50,
				Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
					Subjects:         []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: "nobody"}}},
					NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
				}},
			},
		}, metav1.CreateOptions{})
		s.must(err)
		s.soon("a FlowSchema classifies", func(ctx context.Context) bool {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, servers[1].URL+"/version", nil)
			s.must(err)
			req.Header.Set("Authorization", "Bearer "+servertest.UserToken)
			resp, err := http.DefaultClient.Do(req)
			s.must(err)
			resp.Body.Close()
			return resp.Header.Get("X-Kubernetes-Pf-Flowschema-Uid") == string(made.UID)
		})
	})

	t.Run("quota", func(t *testing.T) {
		s := &twoServers{t, clients, servers}
		_, err := a.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tight"}}, metav1.CreateOptions{})
		s.must(err)
		hard := corev1.ResourceList{"count/configmaps": resource.MustParse("10")}
		q, err := a.CoreV1().ResourceQuotas("tight").Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}, metav1.CreateOptions{})
		s.must(err)
		q.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{"count/configmaps": resource.MustParse("0")}}
		q, err = a.CoreV1().ResourceQuotas("tight").UpdateStatus(ctx, q, metav1.UpdateOptions{})
		s.must(err)
		_, err = b.CoreV1().ResourceQuotas("tight").List(ctx, metav1.ListOptions{ResourceVersion: q.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
		s.must(err)
		var made atomic.Int32
		var working sync.WaitGroup
		for i := range 40 {
			working.Go(func() {
				_, err := clients[i%2].CoreV1().ConfigMaps("tight").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)}}, metav1.CreateOptions{})
				if err == nil {
					made.Add(1)
				}
			})
		}
		working.Wait()
		if n := made.Load(); n != 10 {
			t.Errorf("%d objects were let in by a quota of 10", n)
		}
	})

	// Each server is behind the Service, and one that ends is not.
	s.soon("both are endpoints", func(ctx context.Context) bool {
		ep, err := b.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		return err == nil && len(ep.Subsets) == 1 && len(ep.Subsets[0].Addresses) == 2
	})
	servers[0].Stop()
	s.soon("one is left", func(ctx context.Context) bool {
		ep, err := b.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		return err == nil && len(ep.Subsets) == 1 && len(ep.Subsets[0].Addresses) == 1
	})
}
