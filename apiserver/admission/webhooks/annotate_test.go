package webhooks_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/admission/webhooks"
	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
)

// annotations are those that a write leaves in the audit log at a level.
func annotations(t *testing.T, level string, write func(req *http.Request)) map[string]string {
	t.Helper()
	p, err := audit.ParsePolicy([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: " + level + "}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := audit.New(audit.Config{Policy: p, Log: &audit.LogConfig{Path: path}})
	if err != nil {
		t.Fatal(err)
	}
	req := httptest.NewRequest("POST", "/api/v1/namespaces/ns/pods", nil)
	h := a.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) { write(req) }),
		func(*http.Request, *request.RequestInfo) bool { return false }, nil)
	h.ServeHTTP(httptest.NewRecorder(), req.WithContext(a.Begin(req.Context(), "id")))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var ev auditv1.Event
	if err := json.Unmarshal(text, &ev); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return ev.Annotations
}

func TestAuditAnnotations(t *testing.T) {
	r := newRemote(t, func(path string, _ *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if path == "/broken" {
			return patch(`{}`)
		}
		a := patch(`[{"op":"add","path":"/metadata/labels/x","value":"y"}]`)
		a.AuditAnnotations = map[string]string{"why": "because"}
		return a
	})
	broken := mutatingHook(r, "broken.example.com", "/broken")
	broken.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	elsewhere := mutatingHook(r, "elsewhere.example.com", "/none")
	elsewhere.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "where"}}
	badAnswer := validatingHook(r, "bad.example.com", "/broken")
	badAnswer.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
	caches := lookuptest.New(t, namespace(nil),
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "m"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{broken, elsewhere, mutatingHook(r, "good.example.com", "/good")}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "v"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{badAnswer}})
	m, err := webhooks.NewMutating(config(caches))
	if err != nil {
		t.Fatal(err)
	}
	v, err := webhooks.NewValidating(config(caches))
	if err != nil {
		t.Fatal(err)
	}
	write := func(req *http.Request) {
		w := create(caches)
		if err := m.Mutate(req.Context(), w, &match.Reinvocation{}); err != nil {
			t.Error(err)
		}
		if err := v.Validate(req.Context(), w); err != nil {
			t.Error(err)
		}
	}
	want := map[string]string{
		"mutation.webhook.admission.k8s.io/round_0_index_0":               `{"configuration":"m","webhook":"broken.example.com","mutated":false}`,
		"failed-open.mutation.webhook.admission.k8s.io/round_0_index_0":   "broken.example.com",
		"mutation.webhook.admission.k8s.io/round_0_index_2":               `{"configuration":"m","webhook":"good.example.com","mutated":true}`,
		"good.example.com/why":                                            "because",
		"failed-open.validating.webhook.admission.k8s.io/round_0_index_0": "bad.example.com",
	}
	if got := annotations(t, "Metadata", write); !maps.Equal(got, want) {
		t.Errorf("annotations\n %v\nwant\n %v", got, want)
	}
	want["patch.webhook.admission.k8s.io/round_0_index_2"] = `{"configuration":"m","webhook":"good.example.com","patch":[{"op":"add","path":"/metadata/labels/x","value":"y"}],"patchType":"JSONPatch"}`
	if got := annotations(t, "Request", write); !maps.Equal(got, want) {
		t.Errorf("annotations\n %v\nwant\n %v", got, want)
	}
}
