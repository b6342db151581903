package authorization

import (
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func TestReviews(t *testing.T) {
	pods := &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods", Namespace: "ns"}
	path := &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/x"}
	const one = "spec: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must be specified"
	for name, c := range map[string]struct {
		kind string
		obj  runtime.Object
		errs []string
	}{
		"fine":   {"SubjectAccessReview", &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: pods}}, nil},
		"nobody": {"SubjectAccessReview", &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: path}}, []string{`spec.user: Invalid value: "": at least one of user or group must be specified`}},
		"named": {"SubjectAccessReview", &authorizationv1.SubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: authorizationv1.SubjectAccessReviewSpec{User: "u"}},
			[]string{one, "metadata: Invalid value: {\"name\":\"n\"}: must be empty"}},
		"self": {"SelfSubjectAccessReview", &authorizationv1.SelfSubjectAccessReview{}, []string{one}},
		"selectors": {"SelfSubjectAccessReview", &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			FieldSelector: &authorizationv1.FieldSelectorAttributes{},
			LabelSelector: &authorizationv1.LabelSelectorAttributes{RawSelector: "a", Requirements: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "NewerThan", Values: []string{"b"}}}},
		}}}, []string{"spec.resourceAttributes.fieldSelector.requirements: Required value: when spec.resourceAttributes.fieldSelector is specified",
			`spec.resourceAttributes.labelSelector.rawSelector: Invalid value: "a": may not specified at the same time as requirements`}},
		"local": {"LocalSubjectAccessReview", &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"},
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: pods}}, nil},
		"elsewhere": {"LocalSubjectAccessReview", &authorizationv1.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "other"},
			Spec: authorizationv1.SubjectAccessReviewSpec{User: "u", ResourceAttributes: pods}}, []string{`spec.resourceAttributes.namespace: Invalid value: "ns": must match metadata.namespace`}},
		"rules": {"SelfSubjectRulesReview", &authorizationv1.SelfSubjectRulesReview{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range Resources() {
				if r.Kind == c.kind {
					apitest.Want(t, apitest.Create(r, c.obj), c.errs...)
				}
			}
		})
	}
}
