package reviews

import (
	"context"
	"errors"
	"fmt"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

func (r *reviewer) access(ctx context.Context, req *seams.CreateRequest) (runtime.Object, error) {
	review := req.Object.(*authorizationv1.SubjectAccessReview)
	review.Status = r.decide(ctx, subject(&review.Spec), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	return review, nil
}

func (r *reviewer) localAccess(ctx context.Context, req *seams.CreateRequest) (runtime.Object, error) {
	review := req.Object.(*authorizationv1.LocalSubjectAccessReview)
	if review.Namespace != req.Namespace {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("spec.resourceAttributes.namespace must match namespace: %v", req.Namespace))
	}
	review.Status = r.decide(ctx, subject(&review.Spec), review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	return review, nil
}

func (r *reviewer) selfAccess(ctx context.Context, req *seams.CreateRequest) (runtime.Object, error) {
	review := req.Object.(*authorizationv1.SelfSubjectAccessReview)
	review.Status = r.decide(ctx, req.User, review.Spec.ResourceAttributes, review.Spec.NonResourceAttributes)
	return review, nil
}

func subject(s *authorizationv1.SubjectAccessReviewSpec) user.Info {
	u := &user.DefaultInfo{Name: s.User, Groups: s.Groups, UID: s.UID}
	if len(s.Extra) > 0 {
		u.Extra = make(map[string][]string, len(s.Extra))
		for k, v := range s.Extra {
			u.Extra[k] = v
		}
	}
	return u
}

func (r *reviewer) decide(ctx context.Context, u user.Info, res *authorizationv1.ResourceAttributes, non *authorizationv1.NonResourceAttributes) authorizationv1.SubjectAccessReviewStatus {
	a := authorizer.AttributesRecord{User: u}
	if res != nil {
		a = resourceAttributes(u, res)
	} else {
		a.Path, a.Verb = non.Path, non.Verb
	}
	decision, reason, err := r.Authorizer.Authorize(ctx, a)
	return authorizationv1.SubjectAccessReviewStatus{
		Allowed:         decision == authorizer.DecisionAllow,
		Denied:          decision == authorizer.DecisionDeny,
		Reason:          reason,
		EvaluationError: evaluationError(err, &a),
	}
}

func resourceAttributes(u user.Info, in *authorizationv1.ResourceAttributes) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{
		User: u, Verb: in.Verb, Namespace: in.Namespace, APIGroup: in.Group, APIVersion: in.Version,
		Resource: in.Resource, Subresource: in.Subresource, Name: in.Name, ResourceRequest: true,
	}
	if a.APIVersion == "" {
		a.APIVersion = "*"
	}
	if s := in.LabelSelector; s != nil {
		if s.RawSelector != "" {
			parsed, err := labels.Parse(s.RawSelector)
			if err == nil {
				a.LabelSelectorRequirements, _ = parsed.Requirements()
			}
			a.LabelSelectorParsingErr = err
		}
		if len(s.Requirements) > 0 {
			a.LabelSelectorRequirements, a.LabelSelectorParsingErr = labelRequirements(s.Requirements)
		}
	}
	if s := in.FieldSelector; s != nil {
		if s.RawSelector != "" {
			parsed, err := fields.ParseSelector(s.RawSelector)
			if err == nil {
				a.FieldSelectorRequirements = parsed.Requirements()
			}
			a.FieldSelectorParsingErr = err
		}
		if len(s.Requirements) > 0 {
			a.FieldSelectorRequirements, a.FieldSelectorParsingErr = fieldRequirements(s.Requirements)
		}
	}
	return a
}

// labelRequirements leaves out what it does not understand: the requirements narrow the
// question, so with fewer of them the answer is the stricter one.
func labelRequirements(in []metav1.LabelSelectorRequirement) (labels.Requirements, error) {
	operators := map[metav1.LabelSelectorOperator]selection.Operator{
		metav1.LabelSelectorOpIn: selection.In, metav1.LabelSelectorOpNotIn: selection.NotIn,
		metav1.LabelSelectorOpExists: selection.Exists, metav1.LabelSelectorOpDoesNotExist: selection.DoesNotExist,
	}
	var out labels.Requirements
	var errs []error
	for _, q := range in {
		op, ok := operators[q.Operator]
		if !ok {
			errs = append(errs, fmt.Errorf("%q is not a valid label selector operator", q.Operator))
			continue
		}
		r, err := labels.NewRequirement(q.Key, op, q.Values)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, *r)
	}
	return out, errors.Join(errs...)
}

func fieldRequirements(in []metav1.FieldSelectorRequirement) (fields.Requirements, error) {
	operators := map[metav1.FieldSelectorOperator]selection.Operator{
		metav1.FieldSelectorOpIn: selection.Equals, metav1.FieldSelectorOpNotIn: selection.NotEquals,
	}
	var out fields.Requirements
	var errs []error
	for _, q := range in {
		op, ok := operators[q.Operator]
		if !ok || len(q.Values) != 1 {
			errs = append(errs, fmt.Errorf("field selector with operator %q and %d values is not supported", q.Operator, len(q.Values)))
			continue
		}
		out = append(out, fields.Requirement{Field: q.Key, Operator: op, Value: q.Values[0]})
	}
	return out, errors.Join(errs...)
}

func evaluationError(err error, a *authorizer.AttributesRecord) string {
	var parts []string
	if err != nil {
		parts = append(parts, err.Error())
	}
	ignored := func(selector string, left int) {
		partially := ""
		if left > 0 {
			partially = "partially "
		}
		parts = append(parts, fmt.Sprintf("spec.resourceAttributes.%s %signored due to parse error", selector, partially))
	}
	if a.FieldSelectorParsingErr != nil {
		ignored("fieldSelector", len(a.FieldSelectorRequirements))
	}
	if a.LabelSelectorParsingErr != nil {
		ignored("labelSelector", len(a.LabelSelectorRequirements))
	}
	return strings.Join(parts, "; ")
}

// selfRules lists what the user may do in a namespace.
func (r *reviewer) selfRules(ctx context.Context, req *seams.CreateRequest) (runtime.Object, error) {
	review := req.Object.(*authorizationv1.SelfSubjectRulesReview)
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	resource, nonResource, incomplete, err := r.Rules.RulesFor(ctx, req.User, review.Spec.Namespace)
	out := &authorizationv1.SelfSubjectRulesReview{Status: authorizationv1.SubjectRulesReviewStatus{
		ResourceRules:    make([]authorizationv1.ResourceRule, 0, len(resource)),
		NonResourceRules: make([]authorizationv1.NonResourceRule, 0, len(nonResource)),
		Incomplete:       incomplete,
	}}
	for _, i := range resource {
		out.Status.ResourceRules = append(out.Status.ResourceRules, authorizationv1.ResourceRule{
			Verbs: i.GetVerbs(), APIGroups: i.GetAPIGroups(), Resources: i.GetResources(), ResourceNames: i.GetResourceNames(),
		})
	}
	for _, i := range nonResource {
		out.Status.NonResourceRules = append(out.Status.NonResourceRules, authorizationv1.NonResourceRule{
			Verbs: i.GetVerbs(), NonResourceURLs: i.GetNonResourceURLs(),
		})
	}
	if err != nil {
		out.Status.EvaluationError = err.Error()
	}
	return out, nil
}
