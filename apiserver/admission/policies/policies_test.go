package policies_test

import (
	"context"
	"maps"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/admission/policies"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// catalog serves pods and configmaps.
type catalog struct{ served []*seams.Served }

func newCatalog() *catalog {
	return &catalog{[]*seams.Served{
		{Resource: &api.Resource{Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true, StoragePath: "pods"}},
		{Resource: &api.Resource{Version: "v1", Kind: "ConfigMap", Plural: "configmaps", Namespaced: true, StoragePath: "configmaps"}},
	}}
}

func (c *catalog) All() []*seams.Served { return c.served }

func (c *catalog) TypeConverter() (managedfields.TypeConverter, error) {
	return managedfields.NewDeducedTypeConverter(), nil
}

func (c *catalog) Served(gr schema.GroupResource) (out []*seams.Served) {
	for _, s := range c.served {
		if s.GR() == gr {
			out = append(out, s)
		}
	}
	return out
}

func config(caches *lookuptest.Caches) policies.Config {
	scheme := runtime.NewScheme()
	_ = corev1.AddToScheme(scheme)
	c := newCatalog()
	return policies.Config{Caches: caches, Catalog: func() match.Catalog { return c }, Scheme: scheme, Authorizer: authorizer.AuthorizerFunc(
		func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		})}
}

func create(caches *lookuptest.Caches) *match.Write {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"n": "3"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	return match.NewWrite(&seams.Attributes{Operation: seams.Create, Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Namespace: "ns", Name: "p", Object: pod, Options: &metav1.CreateOptions{},
		User: &user.DefaultInfo{Name: "alice"}}, caches, newCatalog())
}

var (
	ns     = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "y"}}}
	onPods = &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
		}}}}
)

func params(name, max string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"p": "yes"}}, Data: map[string]string{"max": max}}
}

type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

func TestValidating(t *testing.T) {
	deny := []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
	type policySpec = admissionregistrationv1.ValidatingAdmissionPolicySpec
	type bindingSpec = admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec
	limit := admissionregistrationv1.Validation{Expression: "int(object.metadata.labels.n) <= int(params.data.max)", MessageExpression: "'at most ' + params.data.max"}
	kind := &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	tests := []struct {
		name    string
		policy  policySpec
		binding bindingSpec
		want    string
		code    int32
		warning string
	}{
		{name: "true", policy: policySpec{Validations: []admissionregistrationv1.Validation{{Expression: "object.kind == 'Pod' && object.apiVersion == 'v1'"}}}},
		{name: "false", policy: policySpec{Validations: []admissionregistrationv1.Validation{{Expression: "object.metadata.name != 'p'"}}},
			want: "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: object.metadata.name != 'p'", code: 422},
		{name: "message and reason", policy: policySpec{Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "never", Reason: ptr.To(metav1.StatusReasonForbidden)}}},
			want: "denied request: never", code: 403},
		{name: "variables and namespace", policy: policySpec{
			Variables:   []admissionregistrationv1.Variable{{Name: "team", Expression: "namespaceObject.metadata.labels.team"}, {Name: "up", Expression: "variables.team + '!'"}},
			Validations: []admissionregistrationv1.Validation{{Expression: "variables.up == 'x!'", MessageExpression: "'team is ' + variables.up"}}},
			want: "team is y!", code: 422},
		{name: "error", policy: policySpec{Validations: []admissionregistrationv1.Validation{{Expression: "object.metadata.labels.none == 'x'"}}},
			want: "no such key: none", code: 422},
		{name: "error, ignored", policy: policySpec{FailurePolicy: ptr.To(admissionregistrationv1.Ignore), Validations: []admissionregistrationv1.Validation{{Expression: "object.metadata.labels.none == 'x'"}}}},
		{name: "compile error", policy: policySpec{Validations: []admissionregistrationv1.Validation{{Expression: "object.("}}},
			want: "compilation failed", code: 422},
		{name: "warn only", policy: policySpec{Validations: []admissionregistrationv1.Validation{{Expression: "false", Message: "never"}}},
			binding: bindingSpec{ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Warn}},
			warning: "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': never"},
		{name: "condition", policy: policySpec{MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "c", Expression: "request.userInfo.username == 'bob'"}},
			Validations: []admissionregistrationv1.Validation{{Expression: "false"}}}},
		{name: "other namespaces", policy: policySpec{Validations: []admissionregistrationv1.Validation{{Expression: "false"}}},
			binding: bindingSpec{MatchResources: &admissionregistrationv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "x"}}}}},
		{name: "authorizer", policy: policySpec{Validations: []admissionregistrationv1.Validation{{Expression: "!authorizer.requestResource.check('delete').allowed()"}}},
			want: "failed expression", code: 422},
		{name: "audit annotation fails", policy: policySpec{AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{Key: "k", ValueExpression: "string(object.metadata.labels.none)"}}},
			want: "no such key", code: 422},
		{name: "parameter", policy: policySpec{ParamKind: kind, Validations: []admissionregistrationv1.Validation{limit}},
			binding: bindingSpec{ParamRef: &admissionregistrationv1.ParamRef{Name: "two"}}, want: "at most 2", code: 422},
		{name: "parameter suits", policy: policySpec{ParamKind: kind, Validations: []admissionregistrationv1.Validation{limit}},
			binding: bindingSpec{ParamRef: &admissionregistrationv1.ParamRef{Name: "four"}}},
		{name: "all parameters", policy: policySpec{ParamKind: kind, Validations: []admissionregistrationv1.Validation{limit}},
			binding: bindingSpec{ParamRef: &admissionregistrationv1.ParamRef{Selector: &metav1.LabelSelector{}}}, want: "at most 2", code: 422},
		{name: "missing parameter", policy: policySpec{ParamKind: kind, Validations: []admissionregistrationv1.Validation{limit}},
			binding: bindingSpec{ParamRef: &admissionregistrationv1.ParamRef{Name: "x", ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)}},
			want:    "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction", code: 422},
		{name: "missing parameter, allowed", policy: policySpec{ParamKind: kind, Validations: []admissionregistrationv1.Validation{limit}},
			binding: bindingSpec{ParamRef: &admissionregistrationv1.ParamRef{Name: "x", ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction)}}},
		{name: "unknown parameter kind", policy: policySpec{ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "x/v1", Kind: "X"}, Validations: []admissionregistrationv1.Validation{limit}},
			binding: bindingSpec{ParamRef: &admissionregistrationv1.ParamRef{Name: "x"}}, want: "failed to find resource referenced by paramKind: 'x/v1, Kind=X'", code: 422},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: tt.policy}
			policy.Spec.MatchConstraints = onPods
			binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: tt.binding}
			binding.Spec.PolicyName = "p"
			if binding.Spec.ValidationActions == nil {
				binding.Spec.ValidationActions = deny
			}
			caches := lookuptest.New(t, ns, policy, binding, params("two", "2"), params("four", "4"))
			v, err := policies.NewValidating(config(caches))
			if err != nil {
				t.Fatal(err)
			}
			var warned warnings
			err = v.Validate(warning.WithWarningRecorder(t.Context(), &warned), create(caches))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			case tt.want != "" && err.(apierrors.APIStatus).Status().Code != tt.code:
				t.Errorf("code %d, want %d", err.(apierrors.APIStatus).Status().Code, tt.code)
			}
			if strings.Join(warned, "|") != tt.warning {
				t.Errorf("warnings %v, want %q", warned, tt.warning)
			}
		})
	}
}

func TestMutating(t *testing.T) {
	apply := func(expression string) admissionregistrationv1.Mutation {
		return admissionregistrationv1.Mutation{PatchType: admissionregistrationv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: expression}}
	}
	jsonPatch := func(expression string) admissionregistrationv1.Mutation {
		return admissionregistrationv1.Mutation{PatchType: admissionregistrationv1.PatchTypeJSONPatch, JSONPatch: &admissionregistrationv1.JSONPatch{Expression: expression}}
	}
	tests := []struct {
		name      string
		mutations []admissionregistrationv1.Mutation
		ignore    bool
		labels    string
		changed   bool
		want      string
	}{
		{name: "apply", mutations: []admissionregistrationv1.Mutation{apply(`Object{metadata: Object.metadata{labels: {"x": object.metadata.labels.n + "3"}}}`)}, labels: "n=3,x=33", changed: true},
		{name: "patch", mutations: []admissionregistrationv1.Mutation{jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/x", value: "y"}]`)}, labels: "n=3,x=y", changed: true},
		{name: "each on the last", mutations: []admissionregistrationv1.Mutation{
			jsonPatch(`[JSONPatch{op: "add", path: "/metadata/labels/x", value: "y"}]`),
			apply(`Object{metadata: Object.metadata{labels: {"z": object.metadata.labels.x + "q"}}}`)}, labels: "n=3,x=y,z=yq", changed: true},
		{name: "nothing new", mutations: []admissionregistrationv1.Mutation{apply(`Object{metadata: Object.metadata{labels: {"n": "3"}}}`)}, labels: "n=3"},
		{name: "test fails", mutations: []admissionregistrationv1.Mutation{jsonPatch(`[JSONPatch{op: "test", path: "/metadata/labels/n", value: "4"}, JSONPatch{op: "add", path: "/metadata/labels/x", value: "y"}]`)}, labels: "n=3"},
		{name: "error", mutations: []admissionregistrationv1.Mutation{apply(`Object{metadata: Object.metadata{labels: {"x": object.metadata.labels.none}}}`)},
			labels: "n=3", want: "policy 'p' with binding 'b' denied request: "},
		{name: "error, ignored", mutations: []admissionregistrationv1.Mutation{apply(`Object{metadata: Object.metadata{labels: {"x": object.metadata.labels.none}}}`)}, ignore: true, labels: "n=3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			policy := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"},
				Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{MatchConstraints: onPods, Mutations: tt.mutations}}
			if tt.ignore {
				policy.Spec.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)
			}
			binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "b"},
				Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "p"}}
			caches := lookuptest.New(t, ns, policy, binding)
			m, err := policies.NewMutating(config(caches))
			if err != nil {
				t.Fatal(err)
			}
			w, round := create(caches), &match.Reinvocation{}
			err = m.Mutate(t.Context(), w, round)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			pod := w.Object.(*corev1.Pod)
			if got := schemaLabels(pod.Labels); got != tt.labels || round.Changed != tt.changed {
				t.Errorf("labels %s changed %v, want %s %v", got, round.Changed, tt.labels, tt.changed)
			}
			if len(pod.Spec.Containers) != 1 || pod.Spec.Containers[0].Image != "i" {
				t.Errorf("containers %v", pod.Spec.Containers)
			}
		})
	}
}

func schemaLabels(m map[string]string) string {
	return metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: m})
}

// TestAuditTrail: what policies want to be recorded is in the audit annotations, whether or
// not the write is refused.
func TestAuditTrail(t *testing.T) {
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: onPods, ParamKind: &admissionregistrationv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"},
		Validations: []admissionregistrationv1.Validation{{Expression: "true"}, {Expression: "false", Message: "never"}},
		AuditAnnotations: []admissionregistrationv1.AuditAnnotation{
			{Key: "max", ValueExpression: "' at most ' + params.data.max"},
			{Key: "same", ValueExpression: "string(object.metadata.name)"},
			{Key: "none", ValueExpression: "null"},
			{Key: "empty", ValueExpression: "' '"},
		}}}
	bind := func(name, param string, actions ...admissionregistrationv1.ValidationAction) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
		return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: "p", ValidationActions: actions,
			ParamRef: &admissionregistrationv1.ParamRef{Name: param, Namespace: "ns", ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)}}}
	}
	caches := lookuptest.New(t, ns, policy, params("one", "1"), params("two", "2"),
		bind("a", "one", admissionregistrationv1.Audit, admissionregistrationv1.Warn), bind("b", "two", admissionregistrationv1.Deny))
	v, err := policies.NewValidating(config(caches))
	if err != nil {
		t.Fatal(err)
	}
	ctx := audit.WithAuditContext(t.Context())
	if err := v.Validate(ctx, create(caches)); err == nil {
		t.Error("not refused")
	}
	want := map[string]string{
		"p/max":  "at most 1, at most 2",
		"p/same": "p",
		"validation.policy.admission.k8s.io/validation_failure": `[{"message":"never","policy":"p","binding":"a","expressionIndex":1,"validationActions":["Audit","Warn"]}]`,
	}
	if got := audit.AuditContextFrom(ctx).GetEventAnnotations(); !maps.Equal(got, want) {
		t.Errorf("annotations\n %v\nwant\n %v", got, want)
	}
}
