package crd

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// decideStatus returns the definition as its status should be, and whether that differs. A
// definition that is being deleted keeps its names.
func decideStatus(crd *apiextensionsv1.CustomResourceDefinition, others []*apiextensionsv1.CustomResourceDefinition) (*apiextensionsv1.CustomResourceDefinition, bool) {
	next := crd.DeepCopy()
	if crd.DeletionTimestamp == nil {
		names, accepted, established := decideNames(crd, others)
		next.Status.AcceptedNames = names
		apihelpers.SetCRDCondition(next, accepted)
		apihelpers.SetCRDCondition(next, established)
	}
	set := func(t apiextensionsv1.CustomResourceDefinitionConditionType, c *apiextensionsv1.CustomResourceDefinitionCondition) {
		if c == nil {
			apihelpers.RemoveCRDCondition(next, t)
		} else {
			apihelpers.SetCRDCondition(next, *c)
		}
	}
	set(apiextensionsv1.NonStructuralSchema, nonStructural(crd))
	set(apiextensionsv1.KubernetesAPIApprovalPolicyConformant, approval(crd))
	return next, !apiequality.Semantic.DeepEqual(crd.Status, next.Status)
}

// nonStructural reports what keeps the schemas of definitions made through v1beta1 from
// being structural (KEP-2337); nil for all others.
func nonStructural(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionCondition {
	c := &apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.NonStructuralSchema, Status: apiextensionsv1.ConditionTrue, Reason: "Violations"}
	var errs field.ErrorList
	if crd.Spec.PreserveUnknownFields {
		errs = append(errs, field.Invalid(field.NewPath("spec", "preserveUnknownFields"), true, "must be false"))
	}
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		internal, err := internalSchema(v)
		if err != nil || internal == nil {
			continue
		}
		s, err := structuralschema.NewStructural(internal)
		if err != nil {
			c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "StructuralError"
			c.Message = fmt.Sprintf("failed to check validation schema for version %s: %v", v.Name, err)
			return c
		}
		errs = append(errs, structuralschema.ValidateStructural(field.NewPath("spec", "versions").Index(i).Child("schema", "openAPIV3Schema"), s)...)
	}
	if len(errs) == 0 {
		return nil
	}
	c.Message = errs.ToAggregate().Error()
	return c
}

// internalSchema is a version's schema in the library's form; nil if it has none.
func internalSchema(v *apiextensionsv1.CustomResourceDefinitionVersion) (*apiextensions.JSONSchemaProps, error) {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return nil, nil
	}
	out := &apiextensions.CustomResourceValidation{}
	// The conversion may share what it is given.
	if err := apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema.DeepCopy(), out, nil); err != nil {
		return nil, fmt.Errorf("convert the schema of version %s: %w", v.Name, err)
	}
	return out.OpenAPIV3Schema, nil
}

// approval says whether a definition in a group of the Kubernetes community has been approved (KEP-1111).
func approval(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinitionCondition {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, why := apihelpers.GetAPIApprovalState(crd.Annotations)
	c := &apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.KubernetesAPIApprovalPolicyConformant, Status: apiextensionsv1.ConditionFalse, Message: why,
	}
	switch state {
	case apihelpers.APIApprovalInvalid:
		c.Reason = "InvalidAnnotation"
	case apihelpers.APIApprovalMissing:
		c.Reason = "MissingAnnotation"
	case apihelpers.APIApproved:
		c.Status, c.Reason = apiextensionsv1.ConditionTrue, "ApprovedAnnotation"
	case apihelpers.APIApprovalBypassed:
		c.Reason = "UnapprovedAnnotation"
	default:
		c.Status, c.Reason = apiextensionsv1.ConditionUnknown, "UnknownAnnotation"
	}
	return c
}
