package rbac

import (
	"fmt"
	"slices"
	"sync"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

// Index maps subjects to bindings and roles to rules. Namespace "" stands for the
// cluster-scoped kinds. It is fed by four followers and read by every request.
type Index struct {
	mu       sync.RWMutex
	roles    map[key][]rbacv1.PolicyRule
	bindings map[key][]subject
	grants   map[subject]map[string][]*grant // by namespace of the binding
}

type key struct{ namespace, name string }

// subject is a user (ServiceAccounts by their user name) or a group.
type subject struct {
	group bool
	name  string
}

// grant is one subject of one binding.
type grant struct {
	binding key
	subject *rbacv1.Subject
	roleRef *rbacv1.RoleRef
	role    key
}

// NewIndex returns an empty index.
func NewIndex() *Index {
	return &Index{
		roles:    map[key][]rbacv1.PolicyRule{},
		bindings: map[key][]subject{},
		grants:   map[subject]map[string][]*grant{},
	}
}

// visit calls f for every grant that applies to u, those of the whole cluster first,
// until f returns false.
func (x *Index) visit(u user.Info, namespace string, f func(*grant, []rbacv1.PolicyRule, error) bool) {
	if u == nil {
		return
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if !x.visitIn("", u, f) || namespace == "" {
		return
	}
	x.visitIn(namespace, u, f)
}

func (x *Index) visitIn(namespace string, u user.Info, f func(*grant, []rbacv1.PolicyRule, error) bool) bool {
	if !x.visitSubject(namespace, subject{name: u.GetName()}, f) {
		return false
	}
	for _, g := range u.GetGroups() {
		if !x.visitSubject(namespace, subject{group: true, name: g}, f) {
			return false
		}
	}
	return true
}

func (x *Index) visitSubject(namespace string, s subject, f func(*grant, []rbacv1.PolicyRule, error) bool) bool {
	for _, g := range x.grants[s][namespace] {
		rules, ok := x.roles[g.role]
		var err error
		if !ok {
			err = missingRole(g.roleRef)
		}
		if !f(g, rules, err) {
			return false
		}
	}
	return true
}

// missingRole names the kind in the singular, as upstream's message does.
func missingRole(ref *rbacv1.RoleRef) error {
	switch ref.Kind {
	case "Role":
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: "role"}, ref.Name)
	case "ClusterRole":
		return apierrors.NewNotFound(schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterrole"}, ref.Name)
	}
	return fmt.Errorf("unsupported role reference kind: %q", ref.Kind)
}

// part receives one of the four kinds: Roles or bindings, of namespaces or the cluster.
type part struct {
	x       *Index
	cluster bool
	binding bool
}

// Roles, ClusterRoles, RoleBindings and ClusterRoleBindings feed the index (lookup.Index).
func (x *Index) Roles() *part               { return &part{x: x} }
func (x *Index) ClusterRoles() *part        { return &part{x: x, cluster: true} }
func (x *Index) RoleBindings() *part        { return &part{x: x, binding: true} }
func (x *Index) ClusterRoleBindings() *part { return &part{x: x, cluster: true, binding: true} }

// Replace implements lookup.Index.
func (p *part) Replace(objs []cacher.Object) {
	p.x.mu.Lock()
	defer p.x.mu.Unlock()
	mine := func(k key) bool { return (k.namespace == "") == p.cluster }
	if p.binding {
		for k := range p.x.bindings {
			if mine(k) {
				p.x.unbind(k)
			}
		}
	} else {
		for k := range p.x.roles {
			if mine(k) {
				delete(p.x.roles, k)
			}
		}
	}
	for _, o := range objs {
		p.x.put(o)
	}
}

// Set implements lookup.Index.
func (p *part) Set(o cacher.Object) {
	p.x.mu.Lock()
	defer p.x.mu.Unlock()
	p.x.put(o)
}

// Delete implements lookup.Index.
func (p *part) Delete(o cacher.Object) {
	p.x.mu.Lock()
	defer p.x.mu.Unlock()
	k := key{o.Meta().GetNamespace(), o.Meta().GetName()}
	if p.binding {
		p.x.unbind(k)
		return
	}
	delete(p.x.roles, k)
}

func (x *Index) put(o cacher.Object) {
	switch obj := o.Runtime().(type) {
	case *rbacv1.Role:
		x.roles[key{obj.Namespace, obj.Name}] = obj.Rules
	case *rbacv1.ClusterRole:
		x.roles[key{"", obj.Name}] = obj.Rules
	case *rbacv1.RoleBinding:
		x.bind(key{obj.Namespace, obj.Name}, obj.Subjects, &obj.RoleRef)
	case *rbacv1.ClusterRoleBinding:
		x.bind(key{"", obj.Name}, obj.Subjects, &obj.RoleRef)
	}
}

func (x *Index) bind(binding key, subjects []rbacv1.Subject, ref *rbacv1.RoleRef) {
	x.unbind(binding)
	role := key{"", ref.Name}
	if ref.Kind != "ClusterRole" {
		role.namespace = binding.namespace
		if role.namespace == "" {
			// A ClusterRoleBinding to a Role reaches nothing; a name no ClusterRole can have keeps it so.
			role.name = "Role:/" + ref.Name
		}
	}
	var of []subject
	for i := range subjects {
		s, ok := subjectOf(&subjects[i], binding.namespace)
		if !ok || slices.Contains(of, s) {
			continue
		}
		of = append(of, s)
		in := x.grants[s]
		if in == nil {
			in = map[string][]*grant{}
			x.grants[s] = in
		}
		in[binding.namespace] = append(in[binding.namespace], &grant{binding: binding, subject: &subjects[i], roleRef: ref, role: role})
	}
	x.bindings[binding] = of
}

func (x *Index) unbind(binding key) {
	for _, s := range x.bindings[binding] {
		in := x.grants[s]
		// Readers hold the lock, so the slice may be changed in place.
		rest := slices.DeleteFunc(in[binding.namespace], func(g *grant) bool { return g.binding == binding })
		if len(rest) > 0 {
			in[binding.namespace] = rest
			continue
		}
		delete(in, binding.namespace)
		if len(in) == 0 {
			delete(x.grants, s)
		}
	}
	delete(x.bindings, binding)
}

func subjectOf(s *rbacv1.Subject, namespace string) (subject, bool) {
	switch s.Kind {
	case rbacv1.UserKind:
		return subject{name: s.Name}, true
	case rbacv1.GroupKind:
		return subject{group: true, name: s.Name}, true
	case rbacv1.ServiceAccountKind:
		if s.Namespace != "" {
			namespace = s.Namespace
		}
		if namespace != "" {
			return subject{name: serviceaccount.MakeUsername(namespace, s.Name)}, true
		}
	}
	return subject{}, false
}
