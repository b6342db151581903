package admissionregistration

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// reviewVersions are the versions of AdmissionReview that a server can send.
var reviewVersions = []string{"v1", "v1beta1"}

// laxity is what an update need not mend because the object had it already.
type laxity struct {
	sideEffects, versions, names, labels bool
	sameConditions                       bool
	expressions                          sets.Set[string]
}

func strict(hooks []hook) field.ErrorList { return validateHooks(hooks, laxity{}) }

func laxityFor(hooks, old []hook) laxity {
	l := laxity{expressions: sets.New[string](), sameConditions: len(hooks) == len(old)}
	names := sets.New[string]()
	for i := range old {
		h := &old[i]
		if h.sideEffects == nil || !slices.Contains(noSideEffects, *h.sideEffects) {
			l.sideEffects = true
		}
		if len(h.reviewVersions) > 0 && !slices.ContainsFunc(h.reviewVersions, knownVersion) {
			l.versions = true
		}
		if names.Has(h.name) {
			l.names = true
		}
		names.Insert(h.name)
		for _, s := range []*metav1.LabelSelector{*h.namespaces, *h.objects} {
			if s != nil && metav1validation.LabelSelectorHasInvalidLabelValue(s) {
				l.labels = true
			}
		}
		for _, c := range h.conditions {
			l.expressions.Insert(c.Expression)
		}
		if l.sameConditions && !equality.Semantic.DeepEqual(hooks[i].conditions, h.conditions) {
			l.sameConditions = false
		}
	}
	return l
}

var (
	noSideEffects  = []admissionregistrationv1.SideEffectClass{admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun}
	anySideEffects = []admissionregistrationv1.SideEffectClass{admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.SideEffectClassNoneOnDryRun,
		admissionregistrationv1.SideEffectClassSome, admissionregistrationv1.SideEffectClassUnknown}
)

func knownVersion(v string) bool { return slices.Contains(reviewVersions, v) }

func validateHooks(hooks []hook, l laxity) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range hooks {
		h, p := &hooks[i], field.NewPath("webhooks").Index(i)
		errs = append(errs, h.validate(l, p)...)
		errs = append(errs, validateReviewVersions(h.reviewVersions, l.versions, p.Child("admissionReviewVersions"))...)
		if !l.names && h.name != "" && names.Has(h.name) {
			errs = append(errs, field.Duplicate(p.Child("name"), h.name))
		}
		names.Insert(h.name)
	}
	return errs
}

func validateReviewVersions(versions []string, anyVersion bool, p *field.Path) field.ErrorList {
	known := strings.Join(reviewVersions, ", ")
	if len(versions) == 0 {
		return field.ErrorList{field.Required(p, "must specify one of "+known)}
	}
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, v := range versions {
		if seen.Has(v) {
			errs = append(errs, field.Invalid(p.Index(i), v, "duplicate version"))
			continue
		}
		seen.Insert(v)
		for _, msg := range validation.IsDNS1035Label(v) {
			errs = append(errs, field.Invalid(p.Index(i), v, msg))
		}
	}
	if !anyVersion && !slices.ContainsFunc(versions, knownVersion) {
		errs = append(errs, field.Invalid(p, versions, "must include at least one of "+known))
	}
	return errs
}

func (h *hook) validate(l laxity, p *field.Path) field.ErrorList {
	errs := validation.IsFullyQualifiedName(p.Child("name"), h.name)
	for i := range h.rules {
		errs = append(errs, validateRule(&h.rules[i], p.Child("rules").Index(i))...)
	}
	if f := *h.failure; f != nil {
		errs = append(errs, oneOf(*f, p.Child("failurePolicy"), admissionregistrationv1.Fail, admissionregistrationv1.Ignore)...)
	}
	if m := *h.match; m != nil {
		errs = append(errs, oneOf(*m, p.Child("matchPolicy"), admissionregistrationv1.Equivalent, admissionregistrationv1.Exact)...)
	}
	allowed := noSideEffects
	if l.sideEffects {
		allowed = anySideEffects
	}
	if s := h.sideEffects; s == nil {
		names := make([]string, len(allowed))
		for i := range allowed {
			names[i] = string(allowed[i])
		}
		errs = append(errs, field.Required(p.Child("sideEffects"), "must specify one of "+strings.Join(names, ", ")))
	} else {
		errs = append(errs, oneOf(*s, p.Child("sideEffects"), allowed...)...)
	}
	if t := *h.timeout; t != nil && (*t < 1 || *t > 30) {
		errs = append(errs, field.Invalid(p.Child("timeoutSeconds"), *t, "the timeout value must be between 1 and 30 seconds"))
	}
	opts := metav1validation.LabelSelectorValidationOptions{AllowInvalidLabelValueInSelector: l.labels}
	errs = append(errs, metav1validation.ValidateLabelSelector(*h.namespaces, opts, p.Child("namespaceSelector"))...)
	errs = append(errs, metav1validation.ValidateLabelSelector(*h.objects, opts, p.Child("objectSelector"))...)
	if h.reinvocation != nil && *h.reinvocation != nil {
		errs = append(errs, oneOf(**h.reinvocation, p.Child("reinvocationPolicy"),
			admissionregistrationv1.IfNeededReinvocationPolicy, admissionregistrationv1.NeverReinvocationPolicy)...)
	}
	errs = append(errs, validateClient(h.client, p.Child("clientConfig"))...)
	if !l.sameConditions {
		errs = append(errs, validateMatchConditions(h.conditions, false, l.expressions, p.Child("matchConditions"))...)
	}
	return errs
}

func validateClient(c *admissionregistrationv1.WebhookClientConfig, p *field.Path) field.ErrorList {
	switch {
	case (c.URL == nil) == (c.Service == nil):
		return field.ErrorList{field.Required(p, "exactly one of url or service is required")}
	case c.URL != nil:
		return validateURL(*c.URL, p.Child("url"))
	}
	return validateService(c.Service, p.Child("service"))
}

func validateURL(text string, p *field.Path) field.ErrorList {
	const form = "; desired format: https://host[/path]"
	u, err := url.Parse(text)
	if err != nil {
		return field.ErrorList{field.Required(p, "url must be a valid URL: "+err.Error()+form)}
	}
	var errs field.ErrorList
	refuse := func(when bool, value, msg string) {
		if when {
			errs = append(errs, field.Invalid(p, value, msg))
		}
	}
	refuse(u.Scheme != "https", u.Scheme, "'https' is the only allowed URL scheme"+form)
	refuse(u.Host == "", u.Host, "host must be specified"+form)
	refuse(u.User != nil, u.User.String(), "user information is not permitted in the URL")
	refuse(u.Fragment != "", u.Fragment, "fragments are not permitted in the URL")
	refuse(u.RawQuery != "", u.RawQuery, "query parameters are not permitted in the URL")
	return errs
}

func validateService(s *admissionregistrationv1.ServiceReference, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	// Upstream reports the two under each other's names.
	if s.Namespace == "" {
		errs = append(errs, field.Required(p.Child("name"), ""))
	}
	if s.Name == "" {
		errs = append(errs, field.Required(p.Child("namespace"), ""))
	}
	port := ptr.Deref(s.Port, 0)
	if msgs := validation.IsValidPortNum(int(port)); len(msgs) > 0 {
		errs = append(errs, field.Invalid(p.Child("port"), port, "port is not valid: "+strings.Join(msgs, ", ")))
	}
	path, pp := ptr.Deref(s.Path, ""), p.Child("path")
	switch path {
	case "", "/":
		return errs
	case "//":
		return append(errs, field.Invalid(pp, path, "segment[0] may not be empty"))
	}
	if !strings.HasPrefix(path, "/") {
		errs = append(errs, field.Invalid(pp, path, "must start with a '/'"))
	}
	for i, segment := range strings.Split(strings.TrimSuffix(path[1:], "/"), "/") {
		if segment == "" {
			errs = append(errs, field.Invalid(pp, path, fmt.Sprintf("segment[%d] may not be empty", i)))
			continue
		}
		for _, msg := range validation.IsDNS1123Subdomain(segment) {
			errs = append(errs, field.Invalid(pp, path, fmt.Sprintf("segment[%d]: %v", i, msg)))
		}
	}
	return errs
}
