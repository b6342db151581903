package crd

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// decideNames says which of the names that a definition asks for it gets, given all other
// definitions, and what that means for its conditions. Names that it was given before stay its own.
func decideNames(crd *apiextensionsv1.CustomResourceDefinition, others []*apiextensionsv1.CustomResourceDefinition) (
	names apiextensionsv1.CustomResourceDefinitionNames, accepted, established apiextensionsv1.CustomResourceDefinitionCondition) {
	resources, kinds := map[string]bool{}, map[string]bool{}
	for _, o := range others {
		if o.Name == crd.Name || o.Spec.Group != crd.Spec.Group {
			continue
		}
		a := &o.Status.AcceptedNames
		for _, n := range append([]string{a.Plural, a.Singular}, a.ShortNames...) {
			resources[n] = true
		}
		kinds[a.Kind], kinds[a.ListKind] = true, true
	}
	want, have := &crd.Spec.Names, &crd.Status.AcceptedNames
	names = *have.DeepCopy()
	accepted = apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue,
		Reason: "NoConflicts", Message: "no conflicts found",
	}
	refuse := func(reason, name string) {
		accepted.Status = apiextensionsv1.ConditionFalse
		accepted.Reason = reason
		accepted.Message = fmt.Sprintf("%q is already in use", name)
	}
	take := func(reason, want, have string, used map[string]bool, to *string) {
		if want != have && used[want] {
			refuse(reason, want)
			return
		}
		*to = want
	}
	take("PluralConflict", want.Plural, have.Plural, resources, &names.Plural)
	take("SingularConflict", want.Singular, have.Singular, resources, &names.Singular)
	short := true
	for _, n := range want.ShortNames {
		if resources[n] && !slices.Contains(have.ShortNames, n) {
			refuse("ShortNamesConflict", n)
			short = false
		}
	}
	if short {
		names.ShortNames = slices.Clone(want.ShortNames)
	}
	take("KindConflict", want.Kind, have.Kind, kinds, &names.Kind)
	take("ListKindConflict", want.ListKind, have.ListKind, kinds, &names.ListKind)
	names.Categories = slices.Clone(want.Categories)

	if old := apihelpers.FindCRDCondition(crd, apiextensionsv1.Established); old != nil && old.Status == apiextensionsv1.ConditionTrue {
		return names, accepted, *old
	}
	established = apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionFalse,
		Reason: "NotAccepted", Message: "not all names are accepted",
	}
	if accepted.Status == apiextensionsv1.ConditionTrue {
		established.Status = apiextensionsv1.ConditionTrue
		established.Reason, established.Message = "InitialNamesAccepted", "the initial names have been accepted"
	}
	return names, accepted, established
}
