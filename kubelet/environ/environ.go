// Package environ computes the environment of a container: literals with $(VAR)
// expansion, keys of ConfigMaps, Secrets and env files, the downward API, and the
// variables that name the Services of the namespace.
//
// It is pure: what it needs to read is handed in as functions.
package environ

import (
	"fmt"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Var is one environment variable.
type Var struct{ Name, Value string }

// Sources are where values come from.
type Sources struct {
	// ConfigMap and Secret read an object of the pod's namespace; absence is an
	// API NotFound error.
	ConfigMap func(name string) (*corev1.ConfigMap, error)
	Secret    func(name string) (*corev1.Secret, error)
	// Services of the pod's namespace (if it wants service links) and the
	// kubernetes Service of the default namespace.
	Services []*corev1.Service
	// EnvFile reads a file below a volume of the pod.
	EnvFile func(volume, path string) ([]byte, error)
	// Downward answers fieldRef and resourceFieldRef.
	Downward Downward
}

// Make returns the environment in a stable order: the container's own variables
// as declared, then those of envFrom, then those of Services.
func Make(pod *corev1.Pod, c *corev1.Container, src Sources) ([]Var, error) {
	services := serviceVars(src.Services)
	own := map[string]string{}
	var order, fromOrder []string
	set := func(list *[]string, name, value string) {
		if _, seen := own[name]; !seen {
			*list = append(*list, name)
		}
		own[name] = value
	}

	cms, secrets := map[string]*corev1.ConfigMap{}, map[string]*corev1.Secret{}
	configMap := func(name string, optional bool) (*corev1.ConfigMap, error) {
		if cm, ok := cms[name]; ok {
			return cm, nil
		}
		cm, err := src.ConfigMap(name)
		if apierrors.IsNotFound(err) && optional {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		cms[name] = cm
		return cm, nil
	}
	secret := func(name string, optional bool) (*corev1.Secret, error) {
		if s, ok := secrets[name]; ok {
			return s, nil
		}
		s, err := src.Secret(name)
		if apierrors.IsNotFound(err) && optional {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		secrets[name] = s
		return s, nil
	}

	for _, from := range c.EnvFrom {
		data := map[string]string{}
		switch {
		case from.ConfigMapRef != nil:
			cm, err := configMap(from.ConfigMapRef.Name, isTrue(from.ConfigMapRef.Optional))
			if err != nil {
				return nil, err
			}
			if cm != nil {
				data = cm.Data
			}
		case from.SecretRef != nil:
			s, err := secret(from.SecretRef.Name, isTrue(from.SecretRef.Optional))
			if err != nil {
				return nil, err
			}
			if s != nil {
				for k, v := range s.Data {
					data[k] = string(v)
				}
			}
		}
		for _, k := range sortedKeys(data) {
			set(&fromOrder, from.Prefix+k, data[k])
		}
	}

	lookup := func(name string) (string, bool) {
		if v, ok := own[name]; ok {
			return v, true
		}
		v, ok := services[name]
		return v, ok
	}
	for _, e := range c.Env {
		value, skip := e.Value, false
		var err error
		switch {
		case value != "":
			value = Expand(value, lookup)
		case e.ValueFrom != nil:
			value, skip, err = valueFrom(pod, c, e.ValueFrom, src, configMap, secret)
			if err != nil {
				return nil, err
			}
		}
		if !skip {
			set(&order, e.Name, value)
		}
	}

	out := make([]Var, 0, len(own)+len(services))
	for _, list := range [][]string{order, fromOrder} {
		for _, name := range list {
			out = append(out, Var{name, own[name]})
		}
	}
	for _, name := range sortedKeys(services) {
		if _, mine := own[name]; !mine {
			out = append(out, Var{name, services[name]})
		}
	}
	return out, nil
}

func valueFrom(pod *corev1.Pod, c *corev1.Container, from *corev1.EnvVarSource, src Sources,
	configMap func(string, bool) (*corev1.ConfigMap, error), secret func(string, bool) (*corev1.Secret, error),
) (value string, skip bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = src.Downward.Field(pod, from.FieldRef.FieldPath)
		return value, false, err
	case from.ResourceFieldRef != nil:
		target := c
		if n := from.ResourceFieldRef.ContainerName; n != "" && n != c.Name {
			if target = findContainer(pod, n); target == nil {
				return "", false, fmt.Errorf("resourceFieldRef names container %q, which the pod does not have", n)
			}
		}
		value, err = src.Downward.Resource(target, from.ResourceFieldRef)
		return value, false, err
	case from.ConfigMapKeyRef != nil:
		ref, optional := from.ConfigMapKeyRef, isTrue(from.ConfigMapKeyRef.Optional)
		cm, err := configMap(ref.Name, optional)
		if err != nil {
			return "", false, err
		}
		if cm != nil {
			if v, ok := cm.Data[ref.Key]; ok {
				return v, false, nil
			}
		}
		if optional {
			return "", true, nil
		}
		return "", false, fmt.Errorf("couldn't find key %v in ConfigMap %v/%v", ref.Key, pod.Namespace, ref.Name)
	case from.SecretKeyRef != nil:
		ref, optional := from.SecretKeyRef, isTrue(from.SecretKeyRef.Optional)
		s, err := secret(ref.Name, optional)
		if err != nil {
			return "", false, err
		}
		if s != nil {
			if v, ok := s.Data[ref.Key]; ok {
				return string(v), false, nil
			}
		}
		if optional {
			return "", true, nil
		}
		return "", false, fmt.Errorf("couldn't find key %v in Secret %v/%v", ref.Key, pod.Namespace, ref.Name)
	case from.FileKeyRef != nil:
		ref := from.FileKeyRef
		raw, err := src.EnvFile(ref.VolumeName, ref.Path)
		if err != nil {
			return "", false, fmt.Errorf("read env file %s of volume %s: %w", ref.Path, ref.VolumeName, err)
		}
		value, err := ParseFile(raw, ref.Key)
		if err != nil {
			return "", false, fmt.Errorf("couldn't parse env file")
		}
		if value == "" {
			if isTrue(ref.Optional) {
				return "", true, nil
			}
			return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, ref.Path)
		}
		return value, false, nil
	}
	return "", false, nil
}

func findContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// Expand replaces $(NAME) by its value; $$ is a literal $, and references that
// lookup does not know stay as written.
func Expand(s string, lookup func(string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i+2:], ')')
			if end < 0 {
				b.WriteString("$(")
				i++
				continue
			}
			name := s[i+2 : i+2+end]
			if v, ok := lookup(name); ok {
				b.WriteString(v)
			} else {
				b.WriteString("$(" + name + ")")
			}
			i += 2 + end
		default:
			b.WriteByte('$')
			b.WriteByte(s[i+1])
			i++
		}
	}
	return b.String()
}

// Lookup makes Expand's lookup of an environment.
func Lookup(env []Var) func(string) (string, bool) {
	m := make(map[string]string, len(env))
	for _, v := range env {
		m[v.Name] = v.Value
	}
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func isTrue(b *bool) bool { return b != nil && *b }

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
