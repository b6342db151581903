package audit

import (
	"errors"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/apis/audit/validation"
	upstream "k8s.io/apiserver/pkg/audit"
	"sigs.k8s.io/yaml"
)

// LoadPolicy reads a policy from a file. Unlike upstream, which logs them and goes on,
// it takes fields that it does not know for what they are: errors of a file that says
// what must be recorded.
func LoadPolicy(path string) (*audit.Policy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read audit policy: %w", err)
	}
	p, err := ParsePolicy(text)
	if err != nil {
		return nil, fmt.Errorf("audit policy %s: %w", path, err)
	}
	return p, nil
}

// ParsePolicy reads a policy, YAML or JSON.
func ParsePolicy(text []byte) (*audit.Policy, error) {
	var is metav1.TypeMeta
	if err := yaml.Unmarshal(text, &is); err != nil {
		return nil, err
	}
	if want := auditv1.SchemeGroupVersion.WithKind("Policy"); is.GroupVersionKind() != want {
		return nil, fmt.Errorf("it has apiVersion: %s and kind: %s; apiVersion: %s and kind: %s are needed", is.APIVersion, is.Kind, want.GroupVersion(), want.Kind)
	}
	p := &audit.Policy{}
	strict := serializer.NewCodecFactory(upstream.Scheme, serializer.EnableStrict).UniversalDecoder()
	if _, _, err := strict.Decode(text, nil, p); err != nil {
		return nil, err
	}
	if errs := validation.ValidatePolicy(p); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if len(p.Rules) == 0 {
		return nil, errors.New("rules: at least one is needed")
	}
	return p, nil
}
