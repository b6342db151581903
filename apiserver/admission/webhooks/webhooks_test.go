package webhooks_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/admission/webhooks"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

// remote is a webhook server; path chooses how it answers.
type remote struct {
	*httptest.Server
	asked chan *admissionv1.AdmissionReview
}

func newRemote(t *testing.T, answer func(path string, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) *remote {
	t.Helper()
	s := &remote{asked: make(chan *admissionv1.AdmissionReview, 16)}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		review := &admissionv1.AdmissionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Errorf("request is no review: %v", err)
		}
		s.asked <- review
		response := answer(req.URL.Path, review.Request)
		if response == nil {
			<-req.Context().Done()
			return
		}
		response.UID = review.Request.UID
		_ = json.NewEncoder(w).Encode(&admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
	}))
	t.Cleanup(s.Close)
	return s
}

func (r *remote) config(path string) admissionregistrationv1.WebhookClientConfig {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
	return admissionregistrationv1.WebhookClientConfig{URL: ptr.To(r.URL + path), CABundle: ca}
}

var onPods = []admissionregistrationv1.RuleWithOperations{{
	Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
	Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
}}

func mutatingHook(r *remote, name, path string) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{Name: name, ClientConfig: r.config(path), Rules: onPods,
		AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](5)}
}

func validatingHook(r *remote, name, path string) admissionregistrationv1.ValidatingWebhook {
	return admissionregistrationv1.ValidatingWebhook{Name: name, ClientConfig: r.config(path), Rules: onPods,
		AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: ptr.To[int32](5)}
}

func create(caches *lookuptest.Caches) *match.Write {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"a": "b"}}}
	return match.NewWrite(&seams.Attributes{Operation: seams.Create, Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Namespace: "ns", Name: "p", Object: pod, Options: &metav1.CreateOptions{FieldManager: "m"},
		User: &user.DefaultInfo{Name: "alice", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}}}, caches, nil)
}

func config(caches *lookuptest.Caches) webhooks.Config {
	return webhooks.Config{Caches: caches, Caller: webhook.New(caches), Authorizer: authorizer.AuthorizerFunc(
		func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		})}
}

func namespace(labels map[string]string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: labels}}
}

func patch(ops string) *admissionv1.AdmissionResponse {
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(ops), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch)}
}

func TestMutatingInOrderAndAgain(t *testing.T) {
	r := newRemote(t, func(path string, r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		pod := &corev1.Pod{}
		if err := json.Unmarshal(r.Object.Raw, pod); err != nil {
			t.Errorf("object: %v", err)
		}
		switch {
		case path == "/first" && pod.Labels["second"] == "":
			return patch(`[{"op":"add","path":"/metadata/labels/first","value":"1"}]`)
		case path == "/first":
			return patch(`[{"op":"add","path":"/metadata/labels/first","value":"saw second"}]`)
		case pod.Labels["first"] == "":
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "first did not run first"}}
		}
		return patch(`[{"op":"add","path":"/metadata/labels/second","value":"2"}]`)
	})
	first := mutatingHook(r, "first.example.com", "/first")
	first.ReinvocationPolicy = ptr.To(admissionregistrationv1.IfNeededReinvocationPolicy)
	caches := lookuptest.New(t, namespace(nil), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{first, mutatingHook(r, "second.example.com", "/second")}})
	m, err := webhooks.NewMutating(config(caches))
	if err != nil {
		t.Fatal(err)
	}
	w, round := create(caches), &match.Reinvocation{}
	if err := m.Mutate(t.Context(), w, round); err != nil {
		t.Fatal(err)
	}
	pod := w.Object.(*corev1.Pod)
	if pod.Labels["first"] != "1" || pod.Labels["second"] != "2" || pod.Labels["a"] != "b" || !round.Changed {
		t.Fatalf("after one round: %v, changed %v", pod.Labels, round.Changed)
	}
	if pod.Kind != "" {
		t.Errorf("the object was left with kind %q", pod.Kind)
	}
	round.Second = true
	if err := m.Mutate(t.Context(), w, round); err != nil {
		t.Fatal(err)
	}
	if pod.Labels["first"] != "saw second" {
		t.Errorf("reinvoked: %v", pod.Labels)
	}
	if n := len(r.asked); n != 3 {
		t.Errorf("%d calls, want 3: the second webhook asks for no reinvocation", n)
	}
	review := <-r.asked
	q := review.Request
	if review.APIVersion != "admission.k8s.io/v1" || q.Kind.Kind != "Pod" || q.Resource.Resource != "pods" || q.Operation != "CREATE" ||
		q.UserInfo.Username != "alice" || q.UserInfo.Extra["k"][0] != "v" || q.Name != "p" || q.Namespace != "ns" || *q.DryRun {
		t.Errorf("review: %+v", q)
	}
	if !strings.Contains(string(q.Options.Raw), `"kind":"CreateOptions"`) || !strings.Contains(string(q.Object.Raw), `"kind":"Pod"`) {
		t.Errorf("options %s, object %s", q.Options.Raw, q.Object.Raw)
	}
}

type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

func TestValidating(t *testing.T) {
	r := newRemote(t, func(path string, _ *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		switch path {
		case "/deny":
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "no", Code: 418}, Warnings: []string{"careful"}}
		case "/mute":
			return &admissionv1.AdmissionResponse{}
		case "/patch":
			return patch(`[]`)
		case "/slow":
			return nil
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	})
	type change = func(*admissionregistrationv1.ValidatingWebhook)
	tests := []struct {
		name, path string
		change     change
		dryRun     bool
		want       string // "" for allowed
		code       int32
		calls      int
	}{
		{"allowed", "/allow", nil, false, "", 0, 1},
		{"denied", "/deny", nil, false, `admission webhook "w.example.com" denied the request: no`, 418, 1},
		{"denied without a word", "/mute", nil, false, `admission webhook "w.example.com" denied the request without explanation`, 400, 1},
		{"a patch is no answer", "/patch", nil, false, `failed calling webhook "w.example.com": received invalid webhook response: validating webhook may not return response.patch`, 500, 1},
		{"too slow", "/slow", func(w *admissionregistrationv1.ValidatingWebhook) { w.TimeoutSeconds = ptr.To[int32](1) }, false, `context deadline exceeded`, 500, 1},
		{"too slow, ignored", "/slow", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.TimeoutSeconds, w.FailurePolicy = ptr.To[int32](1), ptr.To(admissionregistrationv1.Ignore)
		}, false, "", 0, 1},
		{"denial is no failure", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
		}, false, "denied the request: no", 418, 1},
		{"untrusted", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) { w.ClientConfig.CABundle = nil }, false, "certificate", 500, 0},
		{"other namespaces", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}
		}, false, "", 0, 0},
		{"this namespace", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "y"}}
		}, false, "denied", 418, 1},
		{"other objects", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "c"}}
		}, false, "", 0, 0},
		{"other operation", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.Rules = []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update}, Rule: onPods[0].Rule}}
		}, false, "", 0, 0},
		{"cluster scope only", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			rule := onPods[0]
			rule.Scope = ptr.To(admissionregistrationv1.ClusterScope)
			w.Rules = []admissionregistrationv1.RuleWithOperations{rule}
		}, false, "", 0, 0},
		{"condition false", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "object.metadata.labels.nothing == 'x'"}, {Name: "b", Expression: "request.userInfo.username != 'alice'"}}
		}, false, "", 0, 0},
		{"condition fails", "/allow", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "object.metadata.labels.nothing == 'x'"}}
		}, false, "no such key", 403, 0},
		{"condition true", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "object.metadata.labels.a == 'b' && authorizer.group('').resource('pods').check('create').allowed()"}}
		}, false, "denied", 418, 1},
		{"dry run", "/deny", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassSome)
		}, true, `admission webhook "w.example.com" does not support dry run`, 400, 0},
		{"v1beta1", "/patch", func(w *admissionregistrationv1.ValidatingWebhook) {
			w.AdmissionReviewVersions = []string{"v2", "v1beta1"}
		}, false, "", 0, 1},
		{"unknown version", "/allow", func(w *admissionregistrationv1.ValidatingWebhook) { w.AdmissionReviewVersions = []string{"v2"} }, false, "does not accept known AdmissionReview versions", 500, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := validatingHook(r, "w.example.com", tt.path)
			if tt.change != nil {
				tt.change(&h)
			}
			caches := lookuptest.New(t, namespace(map[string]string{"team": "y"}), &admissionregistrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: "c"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{h}})
			v, err := webhooks.NewValidating(config(caches))
			if err != nil {
				t.Fatal(err)
			}
			w := create(caches)
			w.DryRun = tt.dryRun
			var warned warnings
			err = v.Validate(warning.WithWarningRecorder(t.Context(), &warned), w)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			case tt.want != "" && err.(apierrors.APIStatus).Status().Code != tt.code:
				t.Errorf("code %d, want %d", err.(apierrors.APIStatus).Status().Code, tt.code)
			}
			if tt.path == "/deny" && tt.calls > 0 && (len(warned) != 1 || warned[0] != "careful") {
				t.Errorf("warnings %v", warned)
			}
			n := 0
			for ; len(r.asked) > 0; n++ {
				<-r.asked
			}
			if n != tt.calls {
				t.Errorf("%d calls, want %d", n, tt.calls)
			}
		})
	}
}

func TestConfigurationIsExempt(t *testing.T) {
	caches := lookuptest.New(t)
	v, err := webhooks.NewValidating(config(caches))
	if err != nil {
		t.Fatal(err)
	}
	w := match.NewWrite(&seams.Attributes{Operation: seams.Delete, Kind: admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration")}, nil, nil)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := v.Validate(ctx, w); err != nil {
		t.Error(err)
	}
}
