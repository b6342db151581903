package flowcontrol

import (
	"cmp"
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// schema is a FlowSchema made ready for requests.
type schema struct {
	name       string
	precedence int32
	level      string
	by         flowcontrolv1.FlowDistinguisherMethodType // "": all requests are one flow
	rules      []flowcontrolv1.PolicyRulesWithSubjects
	// uid is a header's value, shared by all answers.
	uid []string
}

func newSchema(fs *flowcontrolv1.FlowSchema) *schema {
	s := &schema{
		name: fs.Name, precedence: fs.Spec.MatchingPrecedence, level: fs.Spec.PriorityLevelConfiguration.Name,
		rules: fs.Spec.Rules, uid: []string{string(fs.UID)},
	}
	if m := fs.Spec.DistinguisherMethod; m != nil {
		s.by = m.Type
	}
	return s
}

// order puts schemas in the order in which requests look at them.
func order(all []*schema) {
	slices.SortFunc(all, func(a, b *schema) int {
		return cmp.Or(cmp.Compare(a.precedence, b.precedence), strings.Compare(a.name, b.name))
	})
}

// flow tells the requests of a schema apart.
func (s *schema) flow(u user.Info, info *request.RequestInfo) string {
	switch s.by {
	case flowcontrolv1.FlowDistinguisherMethodByUserType:
		return u.GetName()
	case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		return info.Namespace
	}
	return ""
}

// matches says whether a request is the schema's: some rule names both its user and what it asks for.
func (s *schema) matches(u user.Info, info *request.RequestInfo) bool {
	for i := range s.rules {
		r := &s.rules[i]
		if !slices.ContainsFunc(r.Subjects, func(s flowcontrolv1.Subject) bool { return isSubject(&s, u) }) {
			continue
		}
		if info.IsResourceRequest {
			for j := range r.ResourceRules {
				if matchesResource(&r.ResourceRules[j], info) {
					return true
				}
			}
			continue
		}
		for j := range r.NonResourceRules {
			if matchesPath(&r.NonResourceRules[j], info) {
				return true
			}
		}
	}
	return false
}

func isSubject(s *flowcontrolv1.Subject, u user.Info) bool {
	switch {
	case s.Kind == flowcontrolv1.SubjectKindUser && s.User != nil:
		return s.User.Name == flowcontrolv1.NameAll || s.User.Name == u.GetName()
	case s.Kind == flowcontrolv1.SubjectKindGroup && s.Group != nil:
		return s.Group.Name == flowcontrolv1.NameAll || slices.Contains(u.GetGroups(), s.Group.Name)
	case s.Kind == flowcontrolv1.SubjectKindServiceAccount && s.ServiceAccount != nil:
		if s.ServiceAccount.Name == flowcontrolv1.NameAll {
			rest, ok := strings.CutPrefix(u.GetName(), serviceaccount.ServiceAccountUsernamePrefix+s.ServiceAccount.Namespace)
			return ok && strings.HasPrefix(rest, serviceaccount.ServiceAccountUsernameSeparator)
		}
		return serviceaccount.MatchesUsername(s.ServiceAccount.Namespace, s.ServiceAccount.Name, u.GetName())
	}
	return false
}

func matchesResource(r *flowcontrolv1.ResourcePolicyRule, info *request.RequestInfo) bool {
	if !names(r.Verbs, info.Verb) || !names(r.APIGroups, info.APIGroup) {
		return false
	}
	if info.Namespace == "" {
		if !r.ClusterScope {
			return false
		}
	} else if !names(r.Namespaces, info.Namespace) {
		return false
	}
	if all(r.Resources) {
		return true
	}
	for _, name := range r.Resources {
		if rest, ok := strings.CutPrefix(name, info.Resource); ok &&
			(rest == "" && info.Subresource == "" || rest != "" && rest[0] == '/' && rest[1:] == info.Subresource) {
			return true
		}
	}
	return false
}

func matchesPath(r *flowcontrolv1.NonResourcePolicyRule, info *request.RequestInfo) bool {
	if !names(r.Verbs, info.Verb) {
		return false
	}
	for _, p := range r.NonResourceURLs {
		if p == "*" || p == info.Path {
			return true
		}
		p = strings.TrimSuffix(strings.TrimSuffix(p, "*"), "/")
		if rest, ok := strings.CutPrefix(info.Path, p); ok && strings.HasPrefix(rest, "/") {
			return true
		}
	}
	return false
}

// all says whether a list is the wildcard, which stands alone.
func all(list []string) bool { return len(list) == 1 && list[0] == "*" }

func names(list []string, x string) bool { return all(list) || slices.Contains(list, x) }
