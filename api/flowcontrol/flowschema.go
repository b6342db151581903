// Package flowcontrol declares the resources of flowcontrol.apiserver.k8s.io.
//
// Owns: flowschemas and prioritylevelconfigurations. Must not: queue or limit requests.
package flowcontrol

import (
	"fmt"
	"slices"
	"strings"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"github.com/skiff-k8s/skiff/api"
)

const (
	defaultPrecedence = 1000
	maxPrecedence     = 10000
)

// What is supported, in the order errors list them.
var (
	verbs          = []string{"create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"}
	subjectKinds   = []string{"Group", "ServiceAccount", "User"}
	distinguishers = []string{"ByNamespace", "ByUser"}
)

// Resources lists what the group serves.
func Resources() []*api.Resource {
	return []*api.Resource{flowSchemas(), priorityLevels()}
}

func flowSchemas() *api.Resource {
	spec := flowcontrolv1.FlowSchemaSpec{}.SwaggerDoc()
	return &api.Resource{
		Group: flowcontrolv1.GroupName, Version: "v1",
		Kind: "FlowSchema", Plural: "flowschemas",
		StoragePath: "flowschemas",
		New:         func() api.Object { return &flowcontrolv1.FlowSchema{} },
		NewList:     func() runtime.Object { return &flowcontrolv1.FlowSchemaList{} },
		Default: api.Defaults(func(s *flowcontrolv1.FlowSchema) {
			if s.Spec.MatchingPrecedence == 0 {
				s.Spec.MatchingPrecedence = defaultPrecedence
			}
		}),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(s *flowcontrolv1.FlowSchema) { s.Status = flowcontrolv1.FlowSchemaStatus{} }),
			Validate:      api.Check(validateFlowSchema),
			PrepareUpdate: api.OnUpdate(func(s, old *flowcontrolv1.FlowSchema) { s.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(func(s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
				return validateFlowSchema(s)
			}),
			HasGeneration: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(s, old *flowcontrolv1.FlowSchema) {
					keepMeta(&s.ObjectMeta, &old.ObjectMeta)
					s.Spec = old.Spec
				}),
				ValidateUpdate: api.CheckUpdate(func(s, _ *flowcontrolv1.FlowSchema) field.ErrorList {
					return validateFlowSchemaStatus(s)
				}),
				IgnoredApplyPaths: []string{"metadata", "spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("PriorityLevel", "string", flowcontrolv1.PriorityLevelConfigurationReference{}.SwaggerDoc()["name"], 0),
			api.Column("MatchingPrecedence", "string", spec["matchingPrecedence"], 0),
			api.Column("DistinguisherMethod", "string", spec["distinguisherMethod"], 0),
			api.AgeColumn(),
			api.Column("MissingPL", "string", "references a broken or non-existent PriorityLevelConfiguration", 0),
		},
		Row: api.Cells(func(s *flowcontrolv1.FlowSchema, now time.Time) []any {
			method, missing := "<none>", "?"
			if m := s.Spec.DistinguisherMethod; m != nil {
				method = string(m.Type)
			}
			for _, c := range s.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling {
					missing = string(c.Status)
					break
				}
			}
			return []any{s.Name, s.Spec.PriorityLevelConfiguration.Name, int64(s.Spec.MatchingPrecedence), method,
				api.Age(s.CreationTimestamp, now), missing}
		}),
	}
}

// keepMeta leaves a status update nothing of the metadata but managedFields.
func keepMeta(meta, old *metav1.ObjectMeta) {
	managed := meta.ManagedFields
	*meta = *old
	meta.ManagedFields = managed
}

func validateFlowSchema(s *flowcontrolv1.FlowSchema) field.ErrorList {
	p := field.NewPath("spec")
	errs := validateFlowSchemaSpec(s.Name, &s.Spec, p)
	for _, m := range bootstrap.MandatoryFlowSchemas {
		if m.Name == s.Name && !equality.Semantic.DeepEqual(s.Spec, m.Spec) {
			errs = append(errs, field.Invalid(p, s.Spec, fmt.Sprintf("spec of '%s' must equal the fixed value", s.Name)))
		}
	}
	return append(errs, validateFlowSchemaStatus(s)...)
}

func validateFlowSchemaStatus(s *flowcontrolv1.FlowSchema) field.ErrorList {
	types := make([]string, len(s.Status.Conditions))
	for i, c := range s.Status.Conditions {
		types[i] = string(c.Type)
	}
	return validateConditions(types)
}

// validateConditions wants a type in each condition, and each only once.
func validateConditions(types []string) field.ErrorList {
	var errs field.ErrorList
	for i, t := range types {
		p := field.NewPath("status", "conditions").Index(i).Child("type")
		if slices.Contains(types[:i], t) {
			errs = append(errs, field.Duplicate(p, t))
		}
		if t == "" {
			errs = append(errs, field.Required(p, ""))
		}
	}
	return errs
}

func validateFlowSchemaSpec(name string, spec *flowcontrolv1.FlowSchemaSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	precedence, pp := spec.MatchingPrecedence, p.Child("matchingPrecedence")
	if precedence <= 0 {
		errs = append(errs, field.Invalid(pp, precedence, "must be a positive value"))
	}
	if precedence > maxPrecedence {
		errs = append(errs, field.Invalid(pp, precedence, fmt.Sprintf("must not be greater than %v", maxPrecedence)))
	}
	if precedence == 1 && name != flowcontrolv1.FlowSchemaNameExempt {
		errs = append(errs, field.Invalid(pp, precedence, "only the schema named 'exempt' may have matchingPrecedence 1"))
	}
	if m := spec.DistinguisherMethod; m != nil && !slices.Contains(distinguishers, string(m.Type)) {
		errs = append(errs, field.NotSupported(p.Child("distinguisherMethod", "type"), m, distinguishers))
	}
	level, lp := spec.PriorityLevelConfiguration.Name, p.Child("priorityLevelConfiguration", "name")
	if level == "" {
		errs = append(errs, field.Required(lp, "must reference a priority level"))
	} else {
		errs = append(errs, invalid(lp, level, "", apivalidation.NameIsDNSSubdomain(level, false))...)
	}
	for i := range spec.Rules {
		errs = append(errs, validateRule(&spec.Rules[i], p.Child("rules").Index(i))...)
	}
	return errs
}

func invalid(p *field.Path, value, prefix string, msgs []string) field.ErrorList {
	var errs field.ErrorList
	for _, m := range msgs {
		errs = append(errs, field.Invalid(p, value, prefix+m))
	}
	return errs
}

func validateRule(r *flowcontrolv1.PolicyRulesWithSubjects, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(r.Subjects) == 0 {
		errs = append(errs, field.Required(p.Child("subjects"), "subjects must contain at least one value"))
	}
	for i := range r.Subjects {
		errs = append(errs, validateSubject(&r.Subjects[i], p.Child("subjects").Index(i))...)
	}
	if len(r.ResourceRules) == 0 && len(r.NonResourceRules) == 0 {
		errs = append(errs, field.Required(p, "at least one of resourceRules and nonResourceRules has to be non-empty"))
	}
	for i := range r.ResourceRules {
		errs = append(errs, validateResourceRule(&r.ResourceRules[i], p.Child("resourceRules").Index(i))...)
	}
	for i := range r.NonResourceRules {
		errs = append(errs, validateNonResourceRule(&r.NonResourceRules[i], p.Child("nonResourceRules").Index(i))...)
	}
	return errs
}

func validateSubject(s *flowcontrolv1.Subject, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	kind := string(s.Kind)
	if !slices.Contains(subjectKinds, kind) {
		return field.ErrorList{field.NotSupported(p.Child("kind"), s.Kind, subjectKinds)}
	}
	// The member of the kind is required, the others are forbidden.
	members := []struct {
		kind, field string
		set         bool
		check       func(*field.Path) field.ErrorList
	}{
		{"ServiceAccount", "serviceAccount", s.ServiceAccount != nil, func(p *field.Path) field.ErrorList {
			return validateServiceAccount(s.ServiceAccount, p)
		}},
		{"User", "user", s.User != nil, func(p *field.Path) field.ErrorList { return requireName(s.User.Name, p) }},
		{"Group", "group", s.Group != nil, func(p *field.Path) field.ErrorList { return requireName(s.Group.Name, p) }},
	}
	for _, m := range members {
		mp := p.Child(m.field)
		switch {
		case m.kind == kind && !m.set:
			errs = append(errs, field.Required(mp, fmt.Sprintf("%s is required when subject kind is '%s'", m.field, m.kind)))
		case m.kind == kind:
			errs = append(errs, m.check(mp)...)
		case m.set:
			errs = append(errs, field.Forbidden(mp, fmt.Sprintf("%s is forbidden when subject kind is not '%s'", m.field, m.kind)))
		}
	}
	return errs
}

func requireName(name string, p *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(p.Child("name"), "")}
	}
	return nil
}

func validateServiceAccount(s *flowcontrolv1.ServiceAccountSubject, p *field.Path) field.ErrorList {
	errs := requireName(s.Name, p)
	if s.Name != "" && s.Name != flowcontrolv1.NameAll {
		errs = append(errs, invalid(p.Child("name"), s.Name, "", apivalidation.ValidateServiceAccountName(s.Name, false))...)
	}
	if s.Namespace == "" {
		return append(errs, field.Required(p.Child("namespace"), "must specify namespace for service account"))
	}
	return append(errs, invalid(p.Child("namespace"), s.Namespace, "", apivalidation.ValidateNamespaceName(s.Namespace, false))...)
}

func validateVerbs(list []string, p *field.Path) field.ErrorList {
	switch {
	case len(list) == 0:
		return field.ErrorList{field.Required(p, "verbs must contain at least one value")}
	case slices.Contains(list, "*"):
		return alone(list, p, "verbs")
	}
	for _, v := range list {
		if !slices.Contains(verbs, v) {
			return field.ErrorList{field.NotSupported(p, list, verbs)}
		}
	}
	return nil
}

// alone wants the wildcard of a list, if it is there, to be its only item.
func alone(list []string, p *field.Path, what string) field.ErrorList {
	if len(list) > 1 && slices.Contains(list, "*") {
		return field.ErrorList{field.Invalid(p, list, "if '*' is present, must not specify other "+what)}
	}
	return nil
}

func validateResourceRule(r *flowcontrolv1.ResourcePolicyRule, p *field.Path) field.ErrorList {
	errs := validateVerbs(r.Verbs, p.Child("verbs"))
	if len(r.APIGroups) == 0 {
		errs = append(errs, field.Required(p.Child("apiGroups"), "resource rules must supply at least one api group"))
	}
	errs = append(errs, alone(r.APIGroups, p.Child("apiGroups"), "api groups")...)
	if len(r.Resources) == 0 {
		errs = append(errs, field.Required(p.Child("resources"), "resource rules must supply at least one resource"))
	}
	errs = append(errs, alone(r.Resources, p.Child("resources"), "resources")...)
	np := p.Child("namespaces")
	switch {
	case len(r.Namespaces) == 0 && !r.ClusterScope:
		errs = append(errs, field.Required(np, "resource rules that are not cluster scoped must supply at least one namespace"))
	case slices.Contains(r.Namespaces, "*"):
		errs = append(errs, alone(r.Namespaces, np, "namespaces")...)
	default:
		for i, ns := range r.Namespaces {
			errs = append(errs, invalid(np.Index(i), ns, "each member of this list must be '*' or a DNS-1123 label; ",
				apivalidation.ValidateNamespaceName(ns, false))...)
		}
	}
	return errs
}

func validateNonResourceRule(r *flowcontrolv1.NonResourcePolicyRule, p *field.Path) field.ErrorList {
	errs := validateVerbs(r.Verbs, p.Child("verbs"))
	up := p.Child("nonResourceURLs")
	switch {
	case len(r.NonResourceURLs) == 0:
		errs = append(errs, field.Required(up, "nonResourceURLs must contain at least one value"))
	case slices.Contains(r.NonResourceURLs, "*"):
		errs = append(errs, alone(r.NonResourceURLs, up, "non-resource URLs")...)
	default:
		for i, url := range r.NonResourceURLs {
			if msg := urlProblem(url); msg != "" {
				errs = append(errs, field.Invalid(up.Index(i), url, msg))
			}
		}
	}
	return errs
}

// urlProblem says what is wrong with a URL path that may end in /*.
func urlProblem(path string) string {
	switch stars := strings.Count(path, "*"); {
	case path == "":
		return "must not be empty"
	case path == "/":
		return ""
	case path[0] != '/':
		return "must start with slash"
	case strings.Contains(path, " "):
		return "must not contain white-space"
	case strings.Contains(path, "//"):
		return "must not contain double slash"
	case stars > 1, stars == 1 && !strings.HasSuffix(path, "/*"):
		return "wildcard can only do suffix matching"
	}
	return ""
}
