package admissionregistration

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	celgo "github.com/google/cel-go/cel"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

const maxMatchConditions = 64

// expression is CEL text and what it may evaluate to.
type expression struct {
	name, text string
	types      []*celgo.Type
}

func (e *expression) GetExpression() string      { return e.text }
func (e *expression) ReturnTypes() []*celgo.Type { return e.types }
func (e *expression) GetName() string            { return e.name }

// compiler checks the expressions of one object. Those that the stored object holds
// already are checked as they were when they were accepted: a newer server may know
// functions that an older one, to which the cluster may roll back, does not.
type compiler struct {
	compile plugincel.Compiler
	stored  sets.Set[string]
}

// newCompiler makes one that knows variables by their names where composed is set.
func newCompiler(composed bool, stored sets.Set[string]) (*compiler, error) {
	env := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	if !composed {
		return &compiler{compile: plugincel.NewCompiler(env), stored: stored}, nil
	}
	c, err := plugincel.NewCompositedCompiler(env)
	if err != nil {
		return nil, fmt.Errorf("build CEL environment: %w", err)
	}
	return &compiler{compile: c, stored: stored}, nil
}

func (c *compiler) mode(text string) environment.Type {
	if c.stored.Has(text) {
		return environment.StoredExpressions
	}
	return environment.NewExpressions
}

func (c *compiler) check(e *expression, vars plugincel.OptionalVariableDeclarations, p *field.Path) field.ErrorList {
	return celErrors(e.text, c.compile.CompileCELExpression(e, vars, c.mode(e.text)).Error, p)
}

// define checks a variable and makes it known to the expressions after it.
func (c *compiler) define(v *admissionregistrationv1.Variable, params bool, p *field.Path) field.ErrorList {
	composed, ok := c.compile.(*plugincel.CompositedCompiler)
	if !ok {
		return field.ErrorList{field.InternalError(p, fmt.Errorf("variable composition is not allowed"))}
	}
	e := &expression{name: v.Name, text: v.Expression, types: []*celgo.Type{celgo.AnyType, celgo.DynType}}
	result := composed.CompileAndStoreVariable(e, plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, c.mode(v.Expression))
	return celErrors(e.text, result.Error, p.Child("expression"))
}

func celErrors(text string, err *cel.Error, p *field.Path) field.ErrorList {
	if err == nil {
		return nil
	}
	switch err.Type {
	case cel.ErrorTypeRequired:
		return field.ErrorList{field.Required(p, err.Detail)}
	case cel.ErrorTypeInvalid:
		return field.ErrorList{field.Invalid(p, text, err.Detail)}
	}
	return field.ErrorList{field.InternalError(p, err)}
}

func validateMatchConditions(list []admissionregistrationv1.MatchCondition, params bool, stored sets.Set[string], p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(list) == 0 {
		return nil
	}
	if len(list) > maxMatchConditions {
		errs = append(errs, field.TooMany(p, len(list), maxMatchConditions))
	}
	c, err := newCompiler(false, stored)
	if err != nil {
		return append(errs, field.InternalError(p, err))
	}
	names := sets.New[string]()
	for i := range list {
		m, mp := &list[i], p.Index(i)
		if text := strings.TrimSpace(m.Expression); text == "" {
			errs = append(errs, field.Required(mp.Child("expression"), ""))
		} else {
			errs = append(errs, c.check(&expression{text: text, types: []*celgo.Type{celgo.BoolType}},
				plugincel.OptionalVariableDeclarations{HasParams: params, HasAuthorizer: true}, mp.Child("expression"))...)
		}
		if m.Name == "" {
			errs = append(errs, field.Required(mp.Child("name"), ""))
		} else {
			errs = append(errs, metav1validation.ValidateLabelName(m.Name, mp.Child("name"))...)
			if names.Has(m.Name) {
				errs = append(errs, field.Duplicate(mp.Child("name"), m.Name))
			}
		}
		names.Insert(m.Name)
	}
	return errs
}

// https://github.com/google/cel-spec/blob/master/doc/langdef.md#syntax
var (
	identifier = regexp.MustCompile("^[_a-zA-Z][_a-zA-Z0-9]*$")
	keywords   = []string{"true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if",
		"import", "let", "loop", "package", "namespace", "return", "var", "void", "while"}
)

func validateVariables(c *compiler, list []admissionregistrationv1.Variable, params bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range list {
		v, vp := &list[i], p.Index(i)
		switch {
		case strings.TrimSpace(v.Name) == "":
			errs = append(errs, field.Required(vp.Child("name"), "name is not specified"))
		case !identifier.MatchString(v.Name) || slices.Contains(keywords, v.Name):
			errs = append(errs, field.Invalid(vp.Child("name"), v.Name, "must be a valid CEL identifier"))
		}
		if strings.TrimSpace(v.Expression) == "" {
			errs = append(errs, field.Required(vp.Child("expression"), "expression is not specified"))
		} else {
			errs = append(errs, c.define(v, params, vp)...)
		}
	}
	return errs
}
