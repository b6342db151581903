package flowcontrol

import (
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func schema(name string, rules ...flowcontrolv1.PolicyRulesWithSubjects) *flowcontrolv1.FlowSchema {
	return &flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-low"},
			Rules:                      rules,
		},
	}
}

func TestFlowSchema(t *testing.T) {
	r := flowSchemas()
	s := schema("mine", flowcontrolv1.PolicyRulesWithSubjects{
		Subjects: []flowcontrolv1.Subject{
			{Kind: "User", User: &flowcontrolv1.UserSubject{Name: "*"}},
			{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Name: "*", Namespace: "default"}},
		},
		ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
			Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true,
		}},
		NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/", "/healthz", "/api/*"}}},
	})
	apitest.Want(t, apitest.Create(r, s))
	apitest.Row(t, r.Row(s, time.Unix(1002, 0)), "mine", "workload-low", int64(1000), "<none>", "2s", "?")

	for _, all := range [][]*flowcontrolv1.FlowSchema{bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas} {
		for _, m := range all {
			apitest.Want(t, apitest.Create(r, m.DeepCopy()))
		}
	}

	bad := schema("bad", flowcontrolv1.PolicyRulesWithSubjects{
		Subjects: []flowcontrolv1.Subject{
			{Kind: "Robot"},
			{Kind: "User", Group: &flowcontrolv1.GroupSubject{Name: "g"}},
			{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{}},
		},
		ResourceRules:    []flowcontrolv1.ResourcePolicyRule{{Verbs: []string{"fly"}, APIGroups: []string{"*", "apps"}, Namespaces: []string{"A"}}},
		NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*", "get"}, NonResourceURLs: []string{"a", "/b//c", "/d*", "/e f", ""}}},
	}, flowcontrolv1.PolicyRulesWithSubjects{})
	bad.Spec.MatchingPrecedence = 1
	bad.Spec.PriorityLevelConfiguration.Name = ""
	bad.Spec.DistinguisherMethod = &flowcontrolv1.FlowDistinguisherMethod{Type: "ByMood"}
	apitest.Want(t, apitest.Create(r, bad),
		"spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
		"spec.distinguisherMethod.type: Unsupported value",
		"spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
		`spec.rules[0].subjects[0].kind: Unsupported value: "Robot": supported values: "Group", "ServiceAccount", "User"`,
		"spec.rules[0].subjects[1].user: Required value: user is required when subject kind is 'User'",
		"spec.rules[0].subjects[1].group: Forbidden: group is forbidden when subject kind is not 'Group'",
		"spec.rules[0].subjects[2].serviceAccount.name: Required value",
		"spec.rules[0].subjects[2].serviceAccount.namespace: Required value: must specify namespace for service account",
		"spec.rules[0].resourceRules[0].verbs: Unsupported value",
		`spec.rules[0].resourceRules[0].apiGroups: Invalid value: ["*","apps"]: if '*' is present, must not specify other api groups`,
		"spec.rules[0].resourceRules[0].resources: Required value: resource rules must supply at least one resource",
		`spec.rules[0].resourceRules[0].namespaces[0]: Invalid value: "A": each member of this list must be '*' or a DNS-1123 label; `,
		"spec.rules[0].nonResourceRules[0].verbs: Invalid value",
		`spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: "a": must start with slash`,
		`spec.rules[0].nonResourceRules[0].nonResourceURLs[1]: Invalid value: "/b//c": must not contain double slash`,
		`spec.rules[0].nonResourceRules[0].nonResourceURLs[2]: Invalid value: "/d*": wildcard can only do suffix matching`,
		`spec.rules[0].nonResourceRules[0].nonResourceURLs[3]: Invalid value: "/e f": must not contain white-space`,
		`spec.rules[0].nonResourceRules[0].nonResourceURLs[4]: Invalid value: "": must not be empty`,
		"spec.rules[1].subjects: Required value: subjects must contain at least one value",
		"spec.rules[1]: Required value: at least one of resourceRules and nonResourceRules has to be non-empty",
	)

	fixed := bootstrap.MandatoryFlowSchemaCatchAll.DeepCopy()
	fixed.Spec.MatchingPrecedence = 9000
	apitest.Want(t, apitest.Create(r, fixed), "spec: Invalid value")

	next := s.DeepCopy()
	next.Labels = map[string]string{"a": "b"}
	next.Spec.MatchingPrecedence = 5
	next.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{Type: "Dangling", Status: "False"}, {Type: "Dangling"}, {}}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", next, s),
		"status.conditions[1].type: Duplicate value", "status.conditions[2].type: Required value")
	if next.Spec.MatchingPrecedence != 1000 || next.Labels != nil {
		t.Errorf("the status update changed more than status: %v", next)
	}
}
