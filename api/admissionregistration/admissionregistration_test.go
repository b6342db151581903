package admissionregistration

import (
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000, 0)}
}

var now = time.Unix(1002, 0)

func podRule(operations ...admissionregistrationv1.OperationType) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{Operations: operations,
		Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}
}

func webhook(change func(*admissionregistrationv1.MutatingWebhook)) *admissionregistrationv1.MutatingWebhookConfiguration {
	w := admissionregistrationv1.MutatingWebhook{
		Name: "a.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone),
		ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "ns", Name: "hook"}},
		Rules:        []admissionregistrationv1.RuleWithOperations{podRule("CREATE")},
	}
	if change != nil {
		change(&w)
	}
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: named("hooks"), Webhooks: []admissionregistrationv1.MutatingWebhook{w}}
}

func TestWebhookDefaults(t *testing.T) {
	c := webhook(nil)
	apitest.Want(t, apitest.Create(mutatingWebhooks(), c))
	w := c.Webhooks[0]
	if *w.FailurePolicy != "Fail" || *w.MatchPolicy != "Equivalent" || w.NamespaceSelector == nil || w.ObjectSelector == nil ||
		*w.TimeoutSeconds != 10 || *w.ReinvocationPolicy != "Never" || *w.ClientConfig.Service.Port != 443 || *w.Rules[0].Scope != "*" {
		t.Errorf("%+v", w)
	}
	apitest.Row(t, mutatingWebhooks().Row(c, now), "hooks", int64(1), "2s")
}

func TestWebhookValidation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*admissionregistrationv1.MutatingWebhook)
		errs   []string
	}{
		"name": {func(w *admissionregistrationv1.MutatingWebhook) { w.Name = "a" },
			[]string{`webhooks[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots`}},
		"side effects": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.SideEffects = ptr.To(admissionregistrationv1.SideEffectClassSome)
		},
			[]string{`webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun"`}},
		"versions": {func(w *admissionregistrationv1.MutatingWebhook) { w.AdmissionReviewVersions = []string{"v9", "v9"} },
			[]string{`webhooks[0].admissionReviewVersions[1]: Invalid value: "v9": duplicate version`, `webhooks[0].admissionReviewVersions: Invalid value: ["v9","v9"]: must include at least one of v1, v1beta1`}},
		"client": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.ClientConfig = admissionregistrationv1.WebhookClientConfig{URL: ptr.To("http://u@h?q#f")}
		},
			[]string{`webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme`, `webhooks[0].clientConfig.url: Invalid value: "u": user information`,
				`webhooks[0].clientConfig.url: Invalid value: "f": fragments`, `webhooks[0].clientConfig.url: Invalid value: "q": query parameters`}},
		"service": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.ClientConfig.Service = &admissionregistrationv1.ServiceReference{Name: "n", Namespace: "ns", Path: ptr.To("x//A"), Port: ptr.To[int32](0)}
		}, []string{"webhooks[0].clientConfig.service.port: Invalid value: 0", `webhooks[0].clientConfig.service.path: Invalid value: "x//A": must start with a '/'`,
			`webhooks[0].clientConfig.service.path: Invalid value: "x//A": segment[1] may not be empty`,
			`webhooks[0].clientConfig.service.path: Invalid value: "x//A": segment[0] may not be empty`, `webhooks[0].clientConfig.service.path: Invalid value: "x//A": segment[2]: `}},
		"rules": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.Rules[0] = admissionregistrationv1.RuleWithOperations{Operations: []admissionregistrationv1.OperationType{"*", "PATCH"},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{"*", "a"}, Resources: []string{"pods/*", "pods/log", "*", "nodes"}}}
		}, []string{`webhooks[0].rules[0].operations: Invalid value: ["*","PATCH"]: if '*' is present, must not specify other operations`,
			`webhooks[0].rules[0].operations[1]: Unsupported value: "PATCH"`, `webhooks[0].rules[0].apiGroups: Invalid value: ["*","a"]: if '*' is present, must not specify other API groups`,
			"webhooks[0].rules[0].apiVersions: Required value", `webhooks[0].rules[0].resources[1]: Invalid value: "pods/log": if 'pods/*' is present, must not specify pods/log`,
			"webhooks[0].rules[0].resources: Invalid value"}},
		"conditions": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "request.name == 'x'"}, {Name: "a", Expression: "1 + 1"}, {Name: "b", Expression: "params.x"}, {}}
		}, []string{`webhooks[0].matchConditions[1].name: Duplicate value: "a"`, `webhooks[0].matchConditions[1].expression: Invalid value: "1 + 1": must evaluate to bool`,
			`webhooks[0].matchConditions[2].expression: Invalid value: "params.x": compilation failed`, "webhooks[0].matchConditions[3].expression: Required value", "webhooks[0].matchConditions[3].name: Required value"}},
		"timeout": {func(w *admissionregistrationv1.MutatingWebhook) { w.TimeoutSeconds = ptr.To[int32](31) },
			[]string{"webhooks[0].timeoutSeconds: Invalid value: 31: the timeout value must be between 1 and 30 seconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			apitest.Want(t, apitest.Create(mutatingWebhooks(), webhook(c.change)), c.errs...)
		})
	}
	static := webhook(nil)
	static.Name = "x.static.k8s.io"
	apitest.Want(t, apitest.Create(mutatingWebhooks(), static), `metadata.name: Invalid value: "x.static.k8s.io": names ending with ".static.k8s.io" are reserved`)
}

func TestWebhookUpdateTolerates(t *testing.T) {
	r := mutatingWebhooks()
	old := webhook(func(w *admissionregistrationv1.MutatingWebhook) {
		w.SideEffects = nil
		w.AdmissionReviewVersions = []string{"v9"}
		w.MatchConditions = []admissionregistrationv1.MatchCondition{{Name: "a", Expression: "nonsense("}}
	})
	r.Default(old)
	next := old.DeepCopy()
	next.Webhooks[0].TimeoutSeconds = ptr.To[int32](5)
	apitest.Want(t, apitest.Update(r, next, old), "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun, Some, Unknown")
	if !r.SpecChanged(next, old) || r.SpecChanged(old, old) {
		t.Error("webhooks are the spec")
	}
}

func policy(change func(*admissionregistrationv1.ValidatingAdmissionPolicySpec)) *admissionregistrationv1.ValidatingAdmissionPolicy {
	p := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: named("limits"), Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: podRule("CREATE")}}},
		Validations:      []admissionregistrationv1.Validation{{Expression: "object.spec.replicas <= 5"}},
	}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

func TestValidatingPolicy(t *testing.T) {
	r := validatingPolicies()
	fine := policy(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "example.com/v1", Kind: "Limit"}
		s.Variables = []admissionregistrationv1.Variable{{Name: "n", Expression: "object.spec.replicas"}}
		s.Validations = []admissionregistrationv1.Validation{{Expression: "variables.n <= params.max", MessageExpression: "'too many: ' + string(variables.n)"}}
		s.AuditAnnotations = []admissionregistrationv1.AuditAnnotation{{Key: "n", ValueExpression: "string(variables.n)"}}
	})
	apitest.Want(t, apitest.Create(r, fine))
	apitest.Row(t, r.Row(fine, now), "limits", int64(1), "example.com/v1/Limit", "2s")

	apitest.Want(t, apitest.Create(r, policy(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		s.MatchConstraints.ResourceRules = nil
		s.Validations = nil
	})), "spec.matchConstraints.resourceRules: Required value", "spec.validations: Required value", "spec.auditAnnotations: Required value")
	apitest.Want(t, apitest.Create(r, policy(func(s *admissionregistrationv1.ValidatingAdmissionPolicySpec) {
		s.ParamKind = &admissionregistrationv1.ParamKind{APIVersion: "A/1", Kind: "9"}
		s.Variables = []admissionregistrationv1.Variable{{Name: "in", Expression: "1"}, {Name: "x", Expression: "y"}}
		s.Validations = []admissionregistrationv1.Validation{{Expression: "object.x +", Message: "a\nb", MessageExpression: "1", Reason: ptr.To(metav1.StatusReasonGone)}}
		s.AuditAnnotations = []admissionregistrationv1.AuditAnnotation{{Key: "a b", ValueExpression: "1"}}
	})), `spec.paramKind.apiVersion: Invalid value: "A"`, `spec.paramKind.apiVersion: Invalid value: "1"`, `spec.paramKind.kind: Invalid value: "9": may have mixed case`,
		`spec.variables[0].name: Invalid value: "in": must be a valid CEL identifier`, `spec.variables[1].expression: Invalid value: "y": compilation failed`,
		`spec.validations[0].expression: Invalid value: "object.x +": compilation failed`, `spec.validations[0].messageExpression: Invalid value: "1": must evaluate to string`,
		`spec.validations[0].message: Invalid value: "a\nb": must not contain line breaks`, `spec.validations[0].reason: Unsupported value: "Gone"`,
		`spec.auditAnnotations[0].key: Invalid value: "limits/a b"`, `spec.auditAnnotations[0].valueExpression: Invalid value: "1": must evaluate to one of [string null_type]`)

	next := fine.DeepCopy()
	next.Spec.Validations = nil
	next.Status.TypeChecking = &admissionregistrationv1.TypeChecking{ExpressionWarnings: []admissionregistrationv1.ExpressionWarning{{}}}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", next, fine), "status.typeChecking.expressionWarnings[0].warning: Required value", "status.typeChecking.expressionWarnings[0].fieldRef: Required value")
	if len(next.Spec.Validations) != 1 {
		t.Error("a status update changes the spec")
	}
}

func TestMutatingPolicy(t *testing.T) {
	r := mutatingPolicies()
	m := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: named("sidecar"), Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
		MatchConstraints:   &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{RuleWithOperations: podRule("CREATE")}}},
		ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
		Mutations: []admissionregistrationv1.Mutation{
			{PatchType: "JSONPatch", JSONPatch: &admissionregistrationv1.JSONPatch{Expression: `[JSONPatch{op: "add", path: "/metadata/labels/a", value: "b"}]`}},
			{PatchType: "ApplyConfiguration", ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: `Object{metadata: Object.metadata{labels: {"a": "b"}}}`}},
		},
	}}
	apitest.Want(t, apitest.Create(r, m))
	bad := m.DeepCopy()
	bad.Spec.MatchConstraints.ResourceRules[0].Operations = []admissionregistrationv1.OperationType{"DELETE"}
	bad.Spec.ReinvocationPolicy = ""
	bad.Spec.Mutations[0].JSONPatch.Expression = "1"
	bad.Spec.Mutations[1].JSONPatch = &admissionregistrationv1.JSONPatch{}
	apitest.Want(t, apitest.Update(r, bad, m), `spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE": supported values: "*", "CONNECT", "CREATE", "UPDATE"`,
		`spec.mutations[0].jsonPatch.expression: Invalid value: "1": must evaluate to list(JSONPatch)`,
		`spec.mutations[1].jsonPatch: Invalid value: "{jsonPatch}": must not be specified when patchType is ApplyConfiguration`, "spec.reinvocationPolicy: Required value")
}

func TestBindings(t *testing.T) {
	b := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named("b"), Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: "limits", ValidationActions: []admissionregistrationv1.ValidationAction{"Deny"},
		ParamRef: &admissionregistrationv1.ParamRef{Name: "p", Namespace: "ns", ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)}}}
	apitest.Want(t, apitest.Create(validatingPolicyBindings(), b))
	apitest.Row(t, validatingPolicyBindings().Row(b, now), "b", "limits", "ns/p", "2s")
	bad := b.DeepCopy()
	bad.Spec.PolicyName = ""
	bad.Spec.ParamRef = &admissionregistrationv1.ParamRef{Name: "a", Selector: &metav1.LabelSelector{}}
	bad.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{"Deny", "Warn", "Warn"}
	apitest.Want(t, apitest.Create(validatingPolicyBindings(), bad), "spec.policyName: Required value", "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
		"spec.paramRef.selector: Forbidden", "spec.paramRef.parameterNotFoundAction: Required value", `spec.validationActions[2]: Duplicate value: "Warn"`, "spec.validationActions: Invalid value")
	m := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: named("b"), Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: "x"}}
	apitest.Want(t, apitest.Create(mutatingPolicyBindings(), m))
	apitest.Row(t, mutatingPolicyBindings().Row(m, now), "b", "x", "<unset>", "2s")
}
